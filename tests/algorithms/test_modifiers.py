"""What modifiers make of an estimator's credit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import random_chains, random_method, random_scores

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError

CHAINS = [Chain("g", [0.0, 1.0], tokens=[2, 1]), Chain("g", [0.0], tokens=[3]), Chain("h", [0.0]), Chain("h", [0.5])]
SEEDS = st.integers(0, 2**32)


def modified(config: AlgorithmConfig, *modifiers: dict[str, object]) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate({**config.model_dump(), "modifiers": modifiers})


def entropies(*lists: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"turn_id": frames(CHAINS)[0]["turn_id"], "entropies": lists})


ENTROPIES = entropies([0.5, 1.5], [2.0], [0.0, 1.0, 1.0], [3.0], [0.25])


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_empg_centres_the_batch_and_its_weights_have_mean_one(seed: int) -> None:
    chains, host = random_chains(seed, longest=8, faults=False), random_method(seed, ("group_zscore", "gigpo"), False)
    rollouts, episodes = frames(chains)
    scores = random_scores(seed, rollouts)
    found = compute_advantages(rollouts, episodes, modified(host, {"kind": "empg"}), scores)[0]["advantage"]
    assert abs(found.mean()) < 1e-9
    # With advantages of 1 and no bonus, what is left before centring are the weights themselves.
    ones = [Chain(chain.group, [1.0], tokens=[2]) for chain in chains]
    rollouts, episodes = frames(ones)
    scores = random_scores(seed, rollouts)
    raw = modified(algorithm("remax"), {"kind": "empg", "zeta": 0.0})
    baseline = [Chain(group, [0.0], tokens=[2], greedy=True) for group in {chain.group for chain in chains}]
    greedy_rollouts, greedy_episodes = frames(baseline, prefix="b-")
    greedy_rollouts["group_id"] = [chain.group for chain in baseline]
    weights = compute_advantages(
        pd.concat([rollouts, greedy_rollouts]),
        pd.concat([episodes, greedy_episodes]),
        raw,
        pd.concat([scores, random_scores(seed, greedy_rollouts)]),
    )[0]["advantage"]
    mean = scores["entropies"].map(np.mean)
    normal = (mean - mean.min()) / (mean.max() - mean.min() + 1e-8)
    np.testing.assert_allclose(weights + 1.0, np.exp(-normal) / (np.exp(-normal).mean() + 1e-8), atol=1e-6)
    assert (weights + 1.0).mean() == pytest.approx(1.0)


def test_equal_entropies_leave_the_advantages_to_their_centring() -> None:
    equal = entropies([1.0, 1.0], [1.0], [1.0] * 3, [1.0], [1.0])
    host = algorithm("group_mean")
    plain = compute_advantages(*frames(CHAINS), host)[0]["advantage"]
    found = compute_advantages(*frames(CHAINS), modified(host, {"kind": "empg", "zeta": 0.0}), equal)[0]["advantage"]
    np.testing.assert_allclose(found, plain - plain.mean(), atol=1e-6)


def test_entropy_scale_weighs_every_token_by_its_whitened_entropy() -> None:
    host = algorithm("group_mean")
    plain = compute_advantages(*frames(CHAINS), host)[0]["advantage"]
    frame, _ = compute_advantages(*frames(CHAINS), modified(host, {"kind": "entropy_scale", "weight": 0.5}), ENTROPIES)
    assert "advantage" not in frame
    flat = np.concatenate(ENTROPIES["entropies"])
    z = (flat - flat.mean()) / np.sqrt(flat.var(ddof=1) + 1e-8)
    expected = np.repeat(plain, ENTROPIES["entropies"].map(len)) * (1 + 0.5 * z)
    np.testing.assert_allclose(np.concatenate(frame["token_advantages"]), expected, rtol=1e-5, atol=1e-6)
    assert frame["token_advantages"].map(len).tolist() == [2, 1, 3, 1, 1]


def test_the_entropy_clip_is_told_the_scores_of_its_tokens() -> None:
    config = algorithm("group_mean", parts={"loss": {"kind": "entropy_clip"}})
    frame, _ = compute_advantages(*frames(CHAINS), config, ENTROPIES)
    scores = np.concatenate(frame["entropy_scores"])
    flat = np.concatenate(ENTROPIES["entropies"])
    np.testing.assert_allclose(scores, (flat - flat.mean()) / flat.std(ddof=1), rtol=1e-5, atol=1e-6)
    assert frame["entropy_scores"].map(len).tolist() == [2, 1, 3, 1, 1]
    equal = entropies([1.0, 1.0], [1.0], [1.0] * 3, [1.0], [1.0])
    assert (np.concatenate(compute_advantages(*frames(CHAINS), config, equal)[0]["entropy_scores"]) == 0.0).all()


def test_group_std_scale_weighs_groups_by_the_spread_of_their_returns() -> None:
    host = algorithm("group_mean")
    plain = compute_advantages(*frames(CHAINS), host)[0]["advantage"]
    found = compute_advantages(*frames(CHAINS), modified(host, {"kind": "group_std_scale"}))[0]["advantage"]
    np.testing.assert_allclose(found, plain * [1.0, 1.0, 1.0, 0.5, 0.5])
    both = modified(host, {"kind": "entropy_scale"}, {"kind": "group_std_scale"})
    other = modified(host, {"kind": "group_std_scale"}, {"kind": "entropy_scale"})
    tokens = [
        np.concatenate(compute_advantages(*frames(CHAINS), config, ENTROPIES)[0]["token_advantages"])
        for config in (both, other)
    ]
    np.testing.assert_allclose(tokens[0], tokens[1], rtol=1e-6)


def test_groups_without_spread_are_worth_nothing_and_no_nan() -> None:
    flat = [Chain("g", [1.0], valid=[True]), Chain("g", [1.0], valid=[False])]
    config = modified(algorithm("group_mean", penalty=0.1), {"kind": "group_std_scale"})
    assert compute_advantages(*frames(flat), config)[0]["advantage"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "parts",
    [
        {"modifiers": [{"kind": "empg"}]},
        {"modifiers": [{"kind": "entropy_scale"}]},
        {"loss": {"kind": "entropy_clip"}},
    ],
)
def test_missing_entropies_are_named(parts: dict[str, object]) -> None:
    config = algorithm("group_mean", parts=parts)
    for scores in (None, ENTROPIES.drop(columns="entropies")):
        with pytest.raises(AgentRLError, match=r"token entropies \(scores.parquet, column entropies\)"):
            compute_advantages(*frames(CHAINS), config, scores)


@pytest.mark.parametrize("kind", ["empg", "entropy_scale"])
@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_permuting_the_rows_changes_no_bit(kind: str, seed: int) -> None:
    rollouts, episodes = frames(random_chains(seed, longest=8, faults=True))
    scores, config = random_scores(seed, rollouts), modified(algorithm("group_zscore"), {"kind": kind})
    name = "advantage" if kind == "empg" else "token_advantages"
    found = []
    for state in (None, seed % 2**32):
        parts = (rollouts, episodes, scores)
        shuffled = parts if state is None else [part.sample(frac=1.0, random_state=state) for part in parts]
        frame = compute_advantages(*shuffled[:2], config, shuffled[2])[0].sort_values("turn_id")
        if not len(frame):
            return
        found.append(np.concatenate([np.atleast_1d(value) for value in frame[name]]).tolist())
    assert found[0] == found[1]


def test_modifiers_that_cannot_follow_each_other_are_refused() -> None:
    modified(algorithm("group_mean"), {"kind": "empg"}, {"kind": "entropy_scale"})
    with pytest.raises(ValueError, match="put it before entropy_scale"):
        modified(algorithm("group_mean"), {"kind": "entropy_scale"}, {"kind": "empg"})


@pytest.mark.parametrize("parts", [{"modifiers": [{"kind": "group_std_scale"}]}, {"selection": {"keep_groups": 0.5}}])
def test_the_spread_of_a_group_needs_more_than_one_episode(parts: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="groups larger than one"):
        algorithm("group_mean", parts={"topology": {"group_size": 1}, **parts}, singleton="raw")
