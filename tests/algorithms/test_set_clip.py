"""The set clip: worked numbers of ratio, clip, reductions and gradient, and what its definition promises.

Of SRPO, s1 to s16 in names of tests are worked numbers, q1 to q10 properties. Those of advantages are in
test_event_advantage.py and test_events.py, of costs in test_utility.py, of what forms an event in test_team_rules.py,
of whole updates in test_set_updates.py and test_two_processes.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_tokens import batch, step
from set_events import numbers, plain_events, random_events, two_passes

from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers
from agentbench_rl.algorithms.losses.set_clip import EventLoss, Events, event_loss, event_metrics, length_factor
from agentbench_rl.config.loss import SequenceClip, SetClip, TokenClip
from tests.set_reference import plain_set_loss

CLOSE = {"rel": 0, "abs": 2e-6}
NORMS = ("sqrt", "none", "mean")
EVENTS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**30)
properties = settings(max_examples=25, deadline=None)


def events(members: list[list[float]], advantage: list[float], tokens: list[int] | None = None) -> Events:
    """Events of members with the given log-ratios."""
    size = np.array([len(item) for item in members], float)
    counts = size if tokens is None else np.array(tokens, float)
    sums = np.array([sum(item) for item in members])
    return Events(sums, size, counts, np.array(advantage, float), np.ones(len(members)))


def loss(members: list[list[float]], advantage: list[float], **changes: Any) -> EventLoss:
    return event_loss(events(members, advantage), SetClip(**changes))


def objective(found: EventLoss) -> float:
    """J."""
    return float(found.share @ found.surrogate)


@pytest.mark.parametrize(
    ("norm", "log_ratio", "ratio"),
    [("sqrt", 0.054420, 1.055928), ("none", 0.076961, 1.08), ("mean", 0.038481, 1.039230)],
)
def test_s1_ratio_of_two_members(norm: Any, log_ratio: float, ratio: float) -> None:
    found = loss([[np.log(1.2), np.log(0.9)]], [1.0], set_norm=norm)
    assert (found.log_ratio[0], found.ratio[0]) == pytest.approx((log_ratio, ratio), **CLOSE)


@pytest.mark.parametrize(
    ("tokens", "len_norm", "ratio"),
    [
        ([0.05, -0.02, 0.04], "none", 1.072508),
        ([0.05, 0.04], "none", 1.094174),
        ([0.05, -0.02, 0.04], "mean", 1.023608),
        ([0.05, -0.02, 0.04], "sqrt", np.exp(0.07 / np.sqrt(3))),
    ],
)
def test_s2_ratio_of_a_single_member_by_its_tokens(tokens: list[float], len_norm: Any, ratio: float) -> None:
    config = SetClip(len_norm=len_norm)
    member = length_factor(np.array([float(len(tokens))]), config)[0] * sum(tokens)
    assert event_loss(events([[member]], [1.0]), config).ratio[0] == pytest.approx(ratio, **CLOSE)


@pytest.mark.parametrize(
    ("norm", "ratio", "good", "bad"),
    [
        ("sqrt", 1.221403, 1.2, -1.221403),
        ("none", 1.491825, 1.2, -1.491825),
        ("mean", 1.105171, 1.105171, -1.105171),
    ],
)
def test_s3_four_members_that_move_alike_are_clipped_together(norm: Any, ratio: float, good: float, bad: float) -> None:
    found = loss([[0.1] * 4] * 2, [1.0, -1.0], set_norm=norm)
    assert found.ratio == pytest.approx([ratio] * 2, **CLOSE)
    assert found.surrogate == pytest.approx([good, bad], **CLOSE)
    assert found.clipped.tolist() == [norm != "mean", False]
    assert (found.coefficient != 0).tolist() == (~found.clipped).tolist()


def test_s3_a_clip_of_each_member_by_itself_does_not_act_there() -> None:
    assert not loss([[0.1]] * 8, [1.0] * 4 + [-1.0] * 4).clipped.any()


def test_s4_opposite_members_cancel() -> None:
    found = loss([[0.5, -0.5]] * 2, [1.0, -1.0])
    assert found.ratio.tolist() == [1.0, 1.0]
    assert not found.clipped.any()
    alone = loss([[0.5], [-0.5]], [1.0, -1.0])
    assert alone.ratio == pytest.approx([1.648721, 0.606531], **CLOSE)
    assert alone.clipped.all()


@pytest.mark.parametrize(("reduction", "expected"), [("event", 7 / 30), ("member", -0.1 / 6), ("token", -0.14)])
def test_s6_reductions_weigh_events_members_or_tokens(reduction: Any, expected: float) -> None:
    """On policy s = A."""
    counted = events([[0.0], [0.0] * 3, [0.0] * 2], [1.0, -0.5, 0.2], [10, 60, 30])
    assert objective(event_loss(counted, SetClip(reduction=reduction))) == pytest.approx(expected, abs=1e-12)


def variance(norm: Any, size: int, own: float, common: float) -> float:
    """Of L, when a member's l is the sum of an own and a common part of the given variances, each one of two values."""
    signs = np.array(list(product((-1.0, 1.0), repeat=size + 1)))
    members = signs[:, 1:] * own**0.5 + signs[:, :1] * common**0.5
    return float(np.var(loss(members.tolist(), [1.0] * len(members), set_norm=norm).log_ratio))


@pytest.mark.parametrize(
    ("norm", "together", "apart"), [("sqrt", 0.07, 0.04), ("none", 0.28, 0.16), ("mean", 0.0175, 0.01)]
)
def test_s7_variance_of_the_log_ratio(norm: Any, together: float, apart: float) -> None:
    assert variance(norm, 4, 0.03, 0.01) == pytest.approx(together, abs=1e-12)
    assert variance(norm, 4, 0.04, 0.0) == pytest.approx(apart, abs=1e-12)


@pytest.mark.parametrize(("correlation", "expected"), [(0.0, 1.0), (0.25, 2.0), (1.0, 5.0)])
def test_s7_variance_of_five_correlated_members(correlation: float, expected: float) -> None:
    assert variance("sqrt", 5, 1.0 - correlation, correlation) == pytest.approx(expected, abs=1e-12)


def test_s8_coefficient_of_every_token() -> None:
    found = loss([[np.log(1.1) / 2] * 4, [np.log(1.1)]], [0.5, 0.5])
    assert found.coefficient == pytest.approx([0.1375, 0.275], abs=1e-12)


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [(1, 0.8, 1.2), (2, 0.729371, 1.294134), (4, 0.64, 1.44), (5, 0.607159, 1.503331), (9, 0.512, 1.728)],
)
def test_s9_band_of_the_joint_ratio(size: int, low: float, high: float) -> None:
    for bound, advantage, outwards in ((low, -1.0, -1), (high, 1.0, 1)):
        members = [[(np.log(bound) + outwards * move) / size] * size for move in (-2e-6, 2e-6)]
        assert loss(members, [advantage] * 2).clipped.tolist() == [False, True]


@pytest.mark.parametrize(("norm", "apart", "alike"), [("sqrt", 1.0, 2.0), ("none", 2.0, 4.0), ("mean", 0.5, 1.0)])
def test_s10_gradient_norm_of_four_members_with_unit_scores(norm: Any, apart: float, alike: float) -> None:
    coefficient = loss([[0.0] * 4], [1.0], set_norm=norm).coefficient[0]
    assert np.linalg.norm(coefficient * np.ones(4)) == pytest.approx(apart)
    assert 4 * coefficient == pytest.approx(alike)


def test_s10_gradient_norm_of_five_members_that_are_alike() -> None:
    assert 5 * loss([[0.0] * 5], [1.0]).coefficient[0] == pytest.approx(2.236068, **CLOSE)


def test_s11_on_policy_the_expected_gradient_is_that_of_the_joint_action_over_the_root_of_its_size() -> None:
    """Two fair coins, reward if both show heads: the gradient by the first logit is 1 / 8."""
    outcomes = list(product((0, 1), repeat=2))
    score = np.array([first - 0.5 for first, _ in outcomes])
    found = {
        norm: loss([[0.0, 0.0]] * 4, [float(a and b) for a, b in outcomes], set_norm=norm) for norm in ("sqrt", "none")
    }
    assert found["none"].coefficient @ score == pytest.approx(0.125, abs=1e-12)
    assert found["sqrt"].coefficient @ score == pytest.approx(0.088388, **CLOSE)


@pytest.mark.parametrize(
    ("size", "norm", "expected"),
    [(2, "sqrt", 0.991650), (4, "sqrt", 0.979898), (2, "none", 1.0), (4, "none", 1.0), (4, "mean", 0.984840)],
)
def test_s12_off_policy_the_mean_ratio_is_below_one_but_for_the_plain_sum(
    size: int, norm: Any, expected: float
) -> None:
    outcomes = [list(item) for item in product((np.log(1.2), np.log(0.8)), repeat=size)]
    assert loss(outcomes, [1.0] * len(outcomes), set_norm=norm).ratio.mean() == pytest.approx(expected, **CLOSE)


MIXED = [[0.1], [0.1, 0.2, -0.05, 0.15], [-0.3, -0.1]]


def test_s13_a_step_of_three_events() -> None:
    found = loss(MIXED, [1.0, 0.5, -1.0])
    assert found.log_ratio == pytest.approx([0.1, 0.2, -0.282843], **CLOSE)
    assert found.ratio == pytest.approx([1.105171, 1.221403, 0.753638], **CLOSE)
    assert found.surrogate == pytest.approx([1.105171, 0.6, -0.8], **CLOSE)
    assert found.clipped.tolist() == [False, True, True]
    assert objective(found) == pytest.approx(0.301724, **CLOSE)
    advantages = [advantage for members, advantage in zip(MIXED, (1.0, 0.5, -1.0), strict=True) for _ in members]
    by_member = loss([[move] for members in MIXED for move in members], advantages)
    assert objective(by_member) == pytest.approx(0.229922, **CLOSE)


def test_metrics_are_means_over_events() -> None:
    counted = events(MIXED, [1.0, 0.5, -1.0])
    found = event_metrics(counted, event_loss(counted, SetClip()))
    assert found == pytest.approx(
        {
            "events": 3.0,
            "set_size": 7 / 3,
            "log_ratio_abs_mean": 0.582843 / 3,
            "log_ratio_abs_max": 0.282843,
            "ratio_mean": 3.080212 / 3,
            "ratio_max": 1.221403,
            "clip_share": 2 / 3,
            "clip_share_k1": 0.0,
            "clip_share_k2": 1.0,
            "clip_share_k4": 1.0,
        },
        **CLOSE,
    )


def test_s16_coefficients_are_the_finite_differences_of_the_objective() -> None:
    """Two members of two coin tokens each, their logits moved by 0.05."""
    old, new, tokens, advantage = np.array([0.2, -0.4]), np.array([0.25, -0.35]), [(1, 0), (1, 1)], [0.7]

    def log_prob(logits: np.ndarray) -> list[float]:
        signs = [[1 if token else -1 for token in member] for member in tokens]
        return [float(-np.log1p(np.exp(-np.array(s) * x)).sum()) for s, x in zip(signs, logits, strict=True)]

    def evaluate(logits: np.ndarray) -> EventLoss:
        return loss([list(np.subtract(log_prob(logits), log_prob(old)))], advantage)

    found = evaluate(new)
    assert (found.log_ratio[0], found.ratio[0]) == pytest.approx((0.037947, 1.038676), **CLOSE)
    assert objective(found) == pytest.approx(0.727073, **CLOSE)
    score = [sum(token - 1 / (1 + np.exp(-x)) for token in member) for member, x in zip(tokens, new, strict=True)]
    gradient = found.coefficient[0] * np.array(score)
    assert gradient == pytest.approx([-0.063932, 0.603182], **CLOSE)
    moves = 1e-6 * np.eye(2)
    differences = [(objective(evaluate(new + move)) - objective(evaluate(new - move))) / 2e-6 for move in moves]
    assert gradient == pytest.approx(differences, abs=1e-8)


CHOICES = list(product(NORMS, ("none", "mean", "sqrt"), ("event", "member", "token")))


@pytest.mark.parametrize(("set_norm", "len_norm", "reduction"), CHOICES)
def test_q6_two_passes_have_value_and_gradient_of_the_objective_in_one(
    set_norm: Any, len_norm: Any, reduction: Any
) -> None:
    config = SetClip(
        set_norm=set_norm,
        len_norm=len_norm,
        reduction=reduction,
        clip_low=0.3,
        kl_coefficient=0.1,
        entropy_coefficient=0.02,
    )
    tokens, event = random_events([[3], [1, 4], [2, 2, 5], [1, 1, 1, 1], [6, 2], [4], [3, 3]], seed=5)
    tokens.old_logp[event[tokens.row] == 4] -= 30.0  # beyond the limit of L
    clipped = event_loss(numbers(tokens, event, config), config).clipped
    assert 0 < clipped.sum() < len(clipped)
    found, gradient = two_passes(tokens, event, config)
    tokens.logp.grad = None
    expected = plain_set_loss(plain_events(tokens, event), config)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-12, abs=1e-10)
    torch.testing.assert_close(gradient, tokens.logp.grad, rtol=0, atol=1e-10)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), SEEDS)
@properties
def test_q1_events_of_one_are_clipped_like_responses_by_their_summed_log_ratio(lengths: list[int], seed: int) -> None:
    tokens, event = random_events([[length] for length in lengths], seed)
    config = SequenceClip(
        pooling="sum", aggregation="sequence_mean_token_mean", clip_low=0.2, clip_high=0.2, kl_coefficient=0
    )
    compare(tokens, event, SetClip(), config, lengths)


@given(st.integers(1, 12), SEEDS)
@properties
def test_q1_events_of_one_token_are_clipped_like_tokens(count: int, seed: int) -> None:
    tokens, event = random_events([[1]] * count, seed)
    compare(tokens, event, SetClip(), TokenClip(dual_clip=None, kl_coefficient=0), [1] * count)


def test_events_of_one_by_mean_length_are_clipped_like_gspo() -> None:
    tokens, event = random_events([[3], [5], [1], [7]], drift=0.2)
    config = SequenceClip(aggregation="sequence_mean_token_mean", clip_low=0.1, clip_high=0.1, kl_coefficient=0)
    compare(tokens, event, SetClip(len_norm="mean", clip_low=0.1, clip_high=0.1), config, [3, 5, 1, 7])


def compare(
    tokens: TrainedTokens, event: torch.Tensor, config: SetClip, other: SequenceClip | TokenClip, lengths: list[int]
) -> None:
    found, gradient = two_passes(tokens, event, config)
    weights = [float(tokens.weight[tokens.row == row][0]) for row in range(len(lengths))]
    expected, expected_gradient, _ = step(tokens, [tokens], other, count_normalisers(weights, lengths))
    assert found == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


@given(EVENTS, SEEDS)
@properties
def test_q2_the_order_of_members_and_of_events_changes_nothing(lengths: list[list[int]], seed: int) -> None:
    tokens, event = random_events(lengths, seed)
    found, gradient = two_passes(tokens, event, SetClip(reduction="member"))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(event)))
    places = torch.cat([torch.nonzero(tokens.row == row).flatten() for row in order])
    turned = replace(
        tokens,
        **{name: getattr(tokens, name)[places] for name in ("old_logp", "advantage", "weight", "reference_logp")},
        logp=tokens.logp.detach()[places].requires_grad_(),
        entropy=tokens.entropy[places],
        row=torch.repeat_interleave(torch.arange(len(order)), tokens.lengths[order]),
        lengths=tokens.lengths[order],
    )
    other, other_gradient = two_passes(turned, event[order], SetClip(reduction="member"))
    assert other == pytest.approx(found, abs=1e-12)
    torch.testing.assert_close(other_gradient, gradient[places], rtol=0, atol=1e-12)


@given(EVENTS, SEEDS)
@properties
def test_q4_a_clip_takes_the_gradient_of_all_members_or_of_none(lengths: list[list[int]], seed: int) -> None:
    tokens, event = random_events(lengths, seed)
    clipped = event_loss(numbers(tokens, event, SetClip()), SetClip()).clipped
    _, gradient = two_passes(tokens, event, SetClip())
    assert ((gradient == 0).numpy() == clipped[event[tokens.row]]).all()
    for number in range(len(lengths)):
        assert len(gradient[event[tokens.row] == number].unique()) == 1  # one ratio, one advantage


@given(EVENTS, SEEDS)
@properties
def test_q5_on_policy_the_objective_is_the_mean_advantage_and_the_gradient_that_over_the_root_of_the_size(
    lengths: list[list[int]], seed: int
) -> None:
    tokens, event = random_events(lengths, seed)
    tokens = replace(tokens, old_logp=tokens.logp.detach(), weight=torch.ones_like(tokens.weight))
    counted = numbers(tokens, event, SetClip())
    found, gradient = two_passes(tokens, event, SetClip())
    assert found == pytest.approx(-counted.advantage.mean(), abs=1e-12)
    expected = -torch.from_numpy(counted.advantage / np.sqrt(counted.size) / len(lengths))[event[tokens.row]]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_q9_the_norms_of_a_set_agree_for_sets_of_one_and_only_for_them() -> None:
    for size in (1, 2, 5):
        found = [loss([[0.1] * size], [1.0], set_norm=norm, clip_high=9.0) for norm in NORMS]
        numbers_found = [(one.ratio[0], one.coefficient[0]) for one in found]
        assert len(set(numbers_found)) == (1 if size == 1 else 3)


def test_log_ratios_of_hundreds_give_finite_losses_and_gradients() -> None:
    for first, second, sign in product((300.0, -300.0), (300.0, -300.0), (1.0, -1.0)):
        tokens = batch([2, 40])
        move = torch.where(tokens.row == 0, first, second)
        shifted = replace(tokens, old_logp=tokens.logp.detach() - move, advantage=torch.full_like(move, sign))
        found, gradient = two_passes(shifted, torch.tensor([0, 0]), SetClip())
        assert np.isfinite(found)
        assert bool(torch.isfinite(gradient).all())
