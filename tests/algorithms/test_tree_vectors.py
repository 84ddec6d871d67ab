"""The worked numbers of trees: the estimators' by example, their means and variances by exact enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from tabular import gradients, group_gradients
from tree_frames import Line, Tree, played_tree, tree, tree_frames, tree_method

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.loss import TokenClip

Weighted = Iterator[tuple[float, Tree]]


def credit(trees: Sequence[Tree], method: AlgorithmConfig) -> dict[str, tuple[float, float]]:
    """Advantage and weight by turn."""
    frame, _ = compute_advantages(*tree_frames(trees), method)
    return dict(zip(frame["turn_id"], zip(frame["advantage"], frame["loss_weight"], strict=True), strict=True))


def siblings(returns: Sequence[float], method: AlgorithmConfig | None = None) -> list[float]:
    """Advantages of siblings at the first state, backbone first."""
    found = credit([tree(returns[:1], {0: [[value] for value in returns[1:]]})], method or tree_method("sibling"))
    return [advantage for advantage, _ in found.values()]


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ((1, 0, 0, 1), (2 / 3, -2 / 3, -2 / 3, 2 / 3)),
        ((1, 0, 0, 0), (1, -1 / 3, -1 / 3, -1 / 3)),
        ((1, 1, 1, 1), (0, 0, 0, 0)),
        ((1, 0, -1, 2), (2 / 3, -2 / 3, -2, 2)),
        ((0.3, 0.9), (-0.6, 0.6)),
    ],
)
@pytest.mark.parametrize("estimator", ["sibling", "tree_weighted"])
def test_leave_one_out_among_siblings(returns: list[float], expected: list[float], estimator: str) -> None:
    np.testing.assert_allclose(siblings(returns, tree_method(estimator)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("nearest", (0.601667, 0.633333, 0.666667, -0.316667, -0.333333, -0.333333)),
        ("sum", (0.330165, 0.347542, 0.365833, -0.316667, -0.333333, -0.333333)),
        ("mean", (0.165082, 0.173771, 0.182917, -0.316667, -0.333333, -0.333333)),
    ],
)
def test_what_a_backbone_gets_before_and_after_its_points(prefix: str, expected: Sequence[float]) -> None:
    second = [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    first = [[0, 0, 0, -1.0], [0, 0, 0, -1.0], [0, 0, 0, 0.0]]
    found = credit([tree([0.0] * 6, {2: first, 4: second})], tree_method("sibling", prefix=prefix))
    np.testing.assert_allclose([found[f"t0.b0.{step}"][0] for step in range(6)], expected, atol=1e-6)
    action = credit([tree([0.0] * 6, {2: first, 4: second})], tree_method("sibling", prefix=prefix, suffix="action"))
    kept = [*expected[:5], 0.0]
    np.testing.assert_allclose([action[f"t0.b0.{step}"][0] for step in range(6)], kept, atol=1e-6)
    assert [action[f"t0.b6.{step}"][0] for step in (4, 5)] == [pytest.approx(1.0), 0.0]


def bernoulli(chances: Sequence[float]) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All outcomes of independent coins, with their probabilities."""
    for outcome in product((0, 1), repeat=len(chances)):
        yield math.prod(p if hit else 1 - p for p, hit in zip(chances, outcome, strict=True)), outcome


def lead_variance(values: Sequence[float], count: int) -> float:
    """Variance of a backbone's lead over `count` siblings in all that pay 0 or 1 with a chance drawn from `values`."""
    trees, weights = [], []
    for value in values:
        for own, won in product((0.0, 1.0), range(count)):
            chance = math.comb(count - 1, won) * value ** (own + won) * (1 - value) ** (count - own - won)
            trees.append(tree([own], {0: [[float(number < won)] for number in range(count - 1)]}))
            weights.append(chance / len(values))
    found = credit(trees, tree_method("sibling"))
    leads = np.array([found[f"t{number}.b0.0"][0] for number in range(len(trees))])
    assert sum(weights) == pytest.approx(1.0)
    assert np.dot(weights, leads) == pytest.approx(0.0, abs=1e-12)
    return float(np.dot(weights, leads**2))


def test_the_variance_theorem() -> None:
    bpo, grpo, matched = lead_variance((0.8, 0.2), 4), lead_variance((0.5,), 4), lead_variance((0.5,), 13)
    assert (bpo, grpo) == (pytest.approx(16 / 75), pytest.approx(1 / 3))
    assert grpo - bpo == pytest.approx(4 / 3 * 0.09)
    assert matched == pytest.approx(13 / 48)
    assert bpo / matched == pytest.approx(256 / 325)


def test_at_the_same_number_of_returns_the_prefix_must_explain_enough() -> None:
    for explained, better in ((3 / 16, None), (0.1, False), (0.3, True)):
        spread = 0.5 * math.sqrt(explained)
        bpo, matched = lead_variance((0.5 + spread, 0.5 - spread), 4), lead_variance((0.5,), 13)
        assert bpo == pytest.approx(matched) if better is None else (bpo < matched) is better


def moments(
    trees: Weighted, method: AlgorithmConfig, odds: list[float], scale: float = 1.0
) -> tuple[list[float], float]:
    """Mean gradient per step, and variance of its sum over steps, of weighted trees, each a group of its own."""
    built = list(trees)
    chances = np.array([chance for chance, _ in built])
    found = scale * group_gradients(*tree_frames([item for _, item in built]), method, odds)
    assert chances.sum() == pytest.approx(1.0)
    mean, total = chances @ found, found.sum(axis=1)
    return mean.tolist(), float(chances @ total**2 - (chances @ total) ** 2)


def coins(points: dict[int, int], odds: list[float], pays: Callable[[Sequence[int]], float]) -> Weighted:
    """All trees of coins, `points` fresh continuations by step, each in a group of its own."""
    lengths = [len(odds), *(len(odds) - step for step, count in points.items() for _ in range(count))]
    starts = [0, *(step for step, count in points.items() for _ in range(count))]
    flat = [odds[step] for start in starts for step in range(start, len(odds))]
    for number, (chance, outcome) in enumerate(bernoulli(flat)):
        cut = np.split(np.array(outcome), np.cumsum(lengths)[:-1])
        lines = [tuple(int(bit) for bit in part) for part in cut]
        fresh: dict[int, list[Sequence[int]]] = {step: [] for step in points}
        for start, actions in zip(starts[1:], lines[1:], strict=True):
            fresh[start].append(actions)
        if chance > 0:
            yield chance, played_tree(lines[0], fresh, pays, f"g{number}")


def moments_with_baseline(trees: Weighted, paid: float, odds: list[float]) -> tuple[list[float], float]:
    """Moments of `tree_weighted` with a constant baseline: what a companion in the group of every tree is paid."""
    chances, built = [], []
    for chance, item in trees:
        chances.append(chance)
        built += [item, Tree(Line([paid], [1]), group=item.group)]
    rollouts, episodes = tree_frames(built)
    advantages, _ = compute_advantages(rollouts, episodes, tree_method("tree_weighted", baseline="task"))
    companions = {f"t{number}.b0.0" for number in range(1, len(built), 2)}
    found = gradients(rollouts, advantages[~advantages["turn_id"].isin(companions)], odds)
    total = found.sum(axis=1)
    return (np.array(chances) @ found).tolist(), float(np.dot(chances, total**2) - np.dot(chances, total) ** 2)


@pytest.mark.parametrize(("coin", "grpo", "bpo"), [(0, 1 / 16, 1 / 16), (1, 1 / 8, 1 / 16), (2, 5 / 16, 1 / 16)])
def test_what_a_prefix_adds_to_the_variance_of_the_gradient(coin: int, grpo: float, bpo: float) -> None:
    odds, method = [0.5, 0.5], tree_method("sibling", lam=0.0, suffix="action")
    mean, variance = moments(coins({1: 1}, odds, lambda path: coin * path[0] + path[1]), method, odds, scale=0.5)
    assert mean == pytest.approx([0.0, 0.25])
    assert variance == pytest.approx(bpo)
    # The same coin before independent episodes: it is drawn anew for each, and its own turn is not looked at.
    chances, totals = [], []
    trees = [(chance, outcome) for chance, outcome in bernoulli([0.5] * 4)]
    for chance, (first, one, second, two) in trees:
        returns = (coin * first + one, coin * second + two)
        leads = siblings(returns)
        chances.append(chance)
        totals.append(0.5 * ((one - 0.5) * leads[0] + (two - 0.5) * leads[1]))
    assert np.dot(chances, totals) == pytest.approx(0.25)
    assert np.dot(chances, np.square(totals)) - np.dot(chances, totals) ** 2 == pytest.approx(grpo)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_gradient_at_the_branch_state_is_unbiased(count: int) -> None:
    trees = []
    for number, (chance, outcome) in enumerate(bernoulli([0.3, 1.0] * count)):
        if chance == 0.0:
            continue
        actions = outcome[::2]
        for paid, returns in bernoulli([0.9 if action else 0.4 for action in actions]):
            lines = [Line([value], [action]) for value, action in zip(returns, actions, strict=True)]
            trees.append((chance * paid, Tree(lines[0], {0: lines[1:]}, group=f"g{number}.{len(trees)}")))
    mean, _ = moments(iter(trees), tree_method("sibling"), [0.3], scale=1.0 / count)
    assert mean == pytest.approx([0.105])
    mean, _ = moments(iter(trees), tree_method("tree_weighted"), [0.3])
    assert mean == pytest.approx([0.105])


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("fresh", [1, 3])
def test_the_prefix_gets_no_expected_credit_from_siblings_but_from_backed_up_returns(lam: float, fresh: int) -> None:
    odds = [0.25, 0.5]
    trees = list(coins({1: fresh}, odds, lambda path: float(path[0])))
    mean, _ = moments(iter(trees), tree_method("sibling", lam=lam), odds)
    assert mean == pytest.approx([0.0, 0.0])
    mean, _ = moments_with_baseline(iter(trees), 0.1, odds)
    assert mean == pytest.approx([3 / 16, 0.0])


def test_points_chosen_after_the_backbone_was_played_bias_the_gradient() -> None:
    chances, trees = [], []
    for number, (chance, (one, two)) in enumerate(bernoulli([0.3, 0.3])):
        if not one:
            item = played_tree([0, 0, 0], {0: [[two, 0, 0]]}, lambda path: float(path[0]), f"g{number}")
            trees.append(item)
            chances.append(chance / 0.7)
    method = tree_method("sibling", suffix="action")
    rollouts, episodes = tree_frames(trees)
    found = group_gradients(rollouts, episodes, method, [0.3] * 3)[:, 0]
    assert np.dot(chances, found) / 2 == pytest.approx(0.15)
    advantages, diagnostics = compute_advantages(rollouts, episodes, method)
    leads = advantages["advantage"][advantages["turn_id"].str.endswith("b0.0")]
    assert np.dot(chances, leads) == pytest.approx(-0.3)
    assert diagnostics["backbone_advantage_mean"] == pytest.approx(np.mean(leads))
    alone = advantages.assign(loss_weight=advantages["turn_id"].str.contains("b1").astype(float))
    assert np.dot(chances, gradients(rollouts, alone, [0.3] * 3)[:, 0]) == pytest.approx(0.21)


@pytest.mark.parametrize(("count", "variance"), [(1, 1 / 25), (2, 1 / 50), (4, 1 / 100)])
def test_backing_up_the_mean_takes_variance_off_the_prefix(count: int, variance: float) -> None:
    trees = []
    for first, value in ((1, 0.8), (0, 0.2)):
        for chance, returns in bernoulli([value] * count):
            lines = [Line([0.0, returns[0]], [first, 1])] + [Line([paid], [1]) for paid in returns[1:]]
            fresh = {1: lines[1:]} if count > 1 else {}
            trees.append((chance / 2, Tree(lines[0], fresh, group=f"g{len(trees)}")))
    # With p = 1 the second turn has no score, so that the sum is the first turn's.
    mean, found = moments_with_baseline(iter(trees), 0.5, [0.5, 1.0 - 1e-15])
    assert mean[0] == pytest.approx(3 / 20)
    assert found == pytest.approx(variance)


@pytest.mark.parametrize(("chance", "expected"), [(0.3, 0.7518), (0.5, 0.875), (0.05, 0.185487)])
def test_how_often_four_siblings_tell_anything(chance: float, expected: float) -> None:
    informative = 0.0
    for weight, returns in bernoulli([chance] * 4):
        trees = [tree(returns[:1], {0: [[value] for value in returns[1:]]})]
        _, diagnostics = compute_advantages(*tree_frames(trees), tree_method("sibling"))
        informative += weight * diagnostics["informative_groups"]
    assert informative == pytest.approx(expected, abs=1e-6)


def test_states_that_are_restored_with_a_loss_show_in_the_mean_lead_of_the_backbones() -> None:
    method, shift = tree_method("sibling"), 0.1
    found = np.zeros(4)
    for weight, returns in bernoulli([0.5] * 4):
        found += weight * np.array(siblings([returns[0], *(value + shift for value in returns[1:])], method))
    np.testing.assert_allclose(found, [-0.1, 0.033333, 0.033333, 0.033333], atol=1e-6)
    trees = [tree([1.0], {0: [[1.0 + shift]] * 3})]
    _, diagnostics = compute_advantages(*tree_frames(trees), method)
    assert diagnostics["backbone_advantage_mean"] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"), [(1.3, 0.5, 0.6), (1.3, -0.5, -0.65), (0.7, 0.5, 0.35), (0.7, -0.5, -0.4)]
)
def test_the_clipped_objective(ratio: float, advantage: float, objective: float) -> None:
    old = torch.tensor([-1.5], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    tokens = TrainedTokens(
        logp=old + math.log(ratio),
        old_logp=old,
        reference_logp=None,
        entropy=None,
        advantage=advantage * one,
        weight=one,
        row=torch.zeros(1, dtype=torch.int64),
        lengths=torch.ones(1, dtype=torch.int64),
    )
    loss = policy_loss(tokens, TokenClip(dual_clip=None, kl_coefficient=0.0), count_normalisers([1.0], [1])).loss
    assert loss.item() == pytest.approx(-objective)


@pytest.mark.parametrize(("difference", "expected"), [(0.1, 0.004837), (-0.1, 0.005171)])
def test_the_kl_estimate(difference: float, expected: float) -> None:
    logp = torch.tensor([-1.0], dtype=torch.float64)
    assert kl_estimate(logp, logp - difference, "k3").item() == pytest.approx(expected, abs=1e-6)


def test_the_weights_of_live_leaves_sum_to_one_at_every_depth() -> None:
    points = {step: [[0.0] * (5 - step)] * 3 for step in range(1, 5)}
    found = credit([tree([0.0] * 5, points), tree([0.0])], tree_method("tree_weighted"))
    assert [found[f"t0.b0.{step}"][1] for step in range(5)] == [1, 1 / 4, 1 / 16, 1 / 64, 1 / 256]
    for step in range(5):
        weights = [weight for turn, (_, weight) in found.items() if turn.startswith("t0") and turn.endswith(f".{step}")]
        assert sum(weights) == 1.0
    assert 3 * found["t0.b1.4"][1] + 3 * found["t0.b4.4"][1] + found["t0.b0.2"][1] == 1.0


def majority(path: Sequence[int]) -> float:
    return float(sum(path) >= 2)


def test_two_points_on_three_bits_are_unbiased_and_have_less_variance_than_independent_episodes() -> None:
    odds = [0.5] * 3
    trees = list(coins({1: 1, 2: 1}, odds, majority))
    mean, variance = moments_with_baseline(iter(trees), 0.5, odds)
    assert (mean, variance) == (pytest.approx([1 / 8] * 3), pytest.approx(7 / 128))
    mean, variance = moments_with_baseline(iter(trees), 0.0, odds)
    assert (mean, variance) == (pytest.approx([1 / 8] * 3), pytest.approx(15 / 128))
    roots = list(coins({0: 2}, odds, majority))
    mean, variance = moments(iter(roots), tree_method("sibling"), odds, scale=1 / 3)
    assert (mean, variance) == (pytest.approx([1 / 8] * 3), pytest.approx(9 / 128))


def test_the_literal_estimator_is_skewed_towards_late_turns() -> None:
    odds = [0.5] * 3
    mean, variance = moments(coins({1: 1, 2: 1}, odds, majority), tree_method("sibling"), odds)
    assert mean == pytest.approx([0.0, 1 / 4, 3 / 8])
    assert variance == pytest.approx(0.600234, abs=1e-6)
    cosine = sum(mean) / (math.sqrt(3) * math.hypot(*mean))
    assert cosine == pytest.approx(0.800641, abs=1e-6)
    assert sum(mean) ** 2 / variance == pytest.approx(0.650787, abs=1e-6)
