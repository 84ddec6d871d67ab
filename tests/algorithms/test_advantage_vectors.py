"""The worked numbers of GRPO, Dr. GRPO, RLOO and GiGPO at 1e-6."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chain_frames import Chain, algorithm, frames

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.advantages.gigpo import anchor_groups, step_returns
from agentbench_rl.algorithms.batch import Batch
from agentbench_rl.algorithms.frames import complete_episodes, complete_rollouts
from agentbench_rl.algorithms.trajectories import discounted_returns, trajectory_rows
from agentbench_rl.config.algorithm import AlgorithmConfig, RewardConfig

TOLERANCE = {"rtol": 0, "atol": 1e-6}


def advantages(chains: list[Chain], config: AlgorithmConfig) -> np.ndarray:
    return compute_advantages(*frames(chains), config)[0]["advantage"].to_numpy()


@pytest.mark.parametrize(
    ("name", "key", "estimator"),
    [
        ("GRPO-1 single-turn std", "A", "group_zscore"),
        ("GRPO-2 single-turn no-std (Dr.GRPO adv)", "A", "group_mean"),
        ("GRPO-3 degenerate group", "A", "group_zscore"),
        ("GRPO-3 degenerate group", "A", "group_mean"),
        ("GRPO-4 singleton group", "A_std", "group_zscore"),
        ("GRPO-4 singleton group", "A_nostd", "group_mean"),
        ("GRPO-5 one success of eight", "A", "group_zscore"),
        ("GRPO-5 one success of eight", "A_nostd", "group_mean"),
        ("GRPO-7 two groups", "A", "group_zscore"),
        ("RLOO-1", "A", "leave_one_out"),
        ("RLOO-2", "A", "leave_one_out"),
        ("RLOO-3 singleton keeps raw score", "A", "leave_one_out"),
        ("RLOO-5 one success of eight", "A", "leave_one_out"),
    ],
)
@pytest.mark.parametrize("statistics", ["per_trajectory", "per_row"])
def test_single_turn_vectors(vectors: dict[str, Any], name: str, key: str, estimator: str, statistics: str) -> None:
    vector = vectors[name]
    groups = vector.get("g", ["x"] * len(vector["R"]))
    chains = [Chain(group, [reward]) for group, reward in zip(groups, vector["R"], strict=True)]
    config = algorithm(estimator, statistics=statistics, singleton="raw")
    np.testing.assert_allclose(advantages(chains, config), vector[key], **TOLERANCE)


def test_epsilon_of_trl(vectors: dict[str, Any]) -> None:
    chains = [Chain("x", [reward]) for reward in (10, 0, 0, 10)]
    expected = vectors["GRPO-8 alternatives on [10,0,0,10]"]["trl_eps_1e4"]
    np.testing.assert_allclose(advantages(chains, algorithm("group_zscore", epsilon=1e-4)), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "key", "estimator", "statistics"),
    [
        ("GRPO-6", "A_per_row", "group_zscore", "per_row"),
        ("GRPO-6", "A_per_traj", "group_zscore", "per_trajectory"),
        ("GRPO-6", "A_per_row_nostd", "group_mean", "per_row"),
        ("GRPO-6", "A_per_traj_nostd", "group_mean", "per_trajectory"),
        ("RLOO-4", "A_per_row", "leave_one_out", "per_row"),
        ("RLOO-4", "A_per_traj", "leave_one_out", "per_trajectory"),
    ],
)
def test_multi_turn_vectors(vectors: dict[str, Any], name: str, key: str, estimator: str, statistics: str) -> None:
    vector = next(value for full, value in vectors.items() if full.startswith(name))
    chains = [Chain("x", [0, 1]), Chain("x", [0, 0, 0], valid=[True, True, False])]
    config = algorithm(estimator, penalty=0.1, scale=10.0, statistics=statistics)
    np.testing.assert_allclose(advantages(chains, config), vector[key], **TOLERANCE)


TWO = {"T1": [0, 0, 10], "T2": [0, 0, 0, 0]}


@pytest.mark.parametrize(
    ("name", "settings", "rewards", "invalid"),
    [
        ("GiGPO-2 two trajectories, mean_norm, per_row episode stats", ("mean", "per_row", 1.0), TWO, None),
        ("GiGPO-2 two trajectories, mean_std_norm, per_row episode stats", ("mean_std", "per_row", 1.0), TWO, None),
        ("GiGPO-3 same, per_traj episode stats, mean_norm", ("mean", "per_trajectory", 1.0), TWO, None),
        ("GiGPO-3b same, per_traj episode stats, mean_std_norm", ("mean_std", "per_trajectory", 1.0), TWO, None),
        (
            "GiGPO-4 all states unique => A_S=0 and A equals GRPO",
            ("mean_std", "per_row", 1.0),
            {"T1": [0, 10], "T2": [0, 0]},
            None,
        ),
        (
            "GiGPO-5 invalid action penalty is local (T2 turn 1 invalid), mean_norm",
            ("mean", "per_row", 1.0),
            TWO,
            ("T2", 1),
        ),
        ("GiGPO-6 omega=0.5 mean_norm", ("mean", "per_row", 0.5), TWO, None),
        (
            "GiGPO-7 loop inside one trajectory (visits s twice, succeeds) vs direct success, mean_norm",
            ("mean", "per_row", 1.0),
            {"T1": [0, 0, 10], "T2": [0, 10]},
            None,
        ),
    ],
)
def test_gigpo_vectors(
    vectors: dict[str, Any],
    name: str,
    settings: tuple[str, str, float],
    rewards: dict[str, list[float]],
    invalid: tuple[str, int] | None,
) -> None:
    described = vectors["GiGPO-2 two trajectories, mean_norm, per_row episode stats"] | vectors[name]
    assert described["row_traj"] == [tree for tree, paid in rewards.items() for _ in paid]
    anchors = iter(described["obs"])
    chains = [
        Chain("x", paid, [next(anchors) for _ in paid], [(tree, step) != invalid for step in range(len(paid))])
        for tree, paid in rewards.items()
    ]
    normalisation, statistics, omega = settings
    if "step_group" in vectors[name]:
        check_steps(chains, vectors[name])
    common = {"penalty": 0.1, "normalisation": normalisation, "statistics": statistics}
    whole = advantages(chains, algorithm("gigpo", omega=omega, **common))
    np.testing.assert_allclose(whole, vectors[name]["A"], **TOLERANCE)
    if omega == 1.0:
        episode_part = advantages(chains, algorithm("gigpo", omega=0.0, **common))
        np.testing.assert_allclose(episode_part, vectors[name]["A_E"], **TOLERANCE)
        np.testing.assert_allclose(whole - episode_part, vectors[name]["A_S"], **TOLERANCE)


def check_steps(chains: list[Chain], vector: dict[str, Any]) -> None:
    """The row scores, step returns and anchor groups that the advantages are made of."""
    rollouts, episodes = frames(chains)
    rollouts, episodes = complete_rollouts(rollouts), complete_episodes(episodes)
    rows = trajectory_rows(rollouts, episodes)
    batch = Batch(rollouts, episodes, rows, RewardConfig(invalid_action_penalty=0.1))
    in_file = np.argsort(rows.row)
    np.testing.assert_allclose(batch.row_scores[in_file], vector["row_score"], **TOLERANCE)
    np.testing.assert_allclose(step_returns(batch, 0.95)[in_file], vector["step_return"], **TOLERANCE)
    assert anchor_groups(rollouts, rows, None).tolist() == vector["step_group"]


def test_discounted_step_returns(vectors: dict[str, Any]) -> None:
    vector = vectors["GiGPO-1 discounted step returns"]
    rollouts, episodes = frames([Chain("x", vector["r"])])
    rows = trajectory_rows(rollouts.assign(member=0, event_id=rollouts["turn_id"]), episodes)
    returns = discounted_returns(rows, rollouts["reward"].to_numpy()[rows.row], vector["gamma"])
    np.testing.assert_allclose(returns[np.argsort(rows.row)], vector["G"], **TOLERANCE)


@pytest.mark.parametrize(("threshold", "key"), [(0.95, "clusters_095"), (0.8, "clusters_080")])
def test_similarity_clusters(vectors: dict[str, Any], threshold: float, key: str) -> None:
    vector = vectors["GiGPO-8 similarity ratios (Ratcliff-Obershelp) and greedy clusters"]
    rollouts, episodes = frames([Chain("x", [0.0] * 4, vector["strings"])])
    rollouts = rollouts.assign(member=0, event_id=rollouts["turn_id"])
    rows = trajectory_rows(rollouts, episodes)
    assert anchor_groups(rollouts, rows, threshold).tolist() == vector[key]


@pytest.mark.parametrize(("left", "right"), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
def test_similarity_ratios(vectors: dict[str, Any], left: int, right: int) -> None:
    vector = vectors["GiGPO-8 similarity ratios (Ratcliff-Obershelp) and greedy clusters"]
    pair = [vector["strings"][left], vector["strings"][right]]
    rollouts, episodes = frames([Chain("x", [0.0, 0.0], pair)])
    rollouts = rollouts.assign(member=0, event_id=rollouts["turn_id"])
    rows = trajectory_rows(rollouts, episodes)
    ratio = vector["ratio"][left][right]
    assert anchor_groups(rollouts, rows, ratio - 1e-6).tolist() == [0, 0]
    assert anchor_groups(rollouts, rows, ratio + 1e-6).tolist() == [0, 1]
