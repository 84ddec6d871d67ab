"""Mean and variance of gradients of trees on coins, from topology to loss, against what exact enumeration gives.

Everything is compared within three standard errors, at a fixed seed.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from coin_rollouts import Coins
from tabular import gradients, group_gradients

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.topology import Branch

ERRORS = 3.0
THRESHOLD = 0.5


def branch_settings(points: int, select: str = "online_threshold") -> Branch:
    return Branch.model_validate(
        {"kind": "branch", "points": points, "siblings": 2, "spacing": 0, "select": select, "trees": 1}
    )


def method(estimator: str, scale: float = 1.0, **advantage: object) -> AlgorithmConfig:
    topology = {} if estimator == "leave_one_out" else branch_settings(1).model_dump()
    settings = {"estimator": estimator, **advantage}
    return AlgorithmConfig.model_validate(
        {"source": "test", "topology": topology, "reward": {"scale": scale}, "advantage": settings}
    )


def check_mean(sample: np.ndarray, expected: float) -> None:
    error = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    assert abs(float(sample.mean()) - expected) <= ERRORS * error, (sample.mean(), expected, error)


def check_means(sample: np.ndarray, expected: list[float]) -> None:
    """The sample [trees, steps] has these means."""
    for column, value in zip(sample.T, expected, strict=True):
        check_mean(column, value)


def check_variance(sample: np.ndarray, expected: float) -> None:
    check_mean((sample - sample.mean()) ** 2, expected)


def check_three_bits(count: int) -> None:
    """A path pays for two ones of three; points at the second and third bit, two siblings each: three returns."""
    odds = [0.5] * 3
    coins = Coins(odds, lambda path: float(path.count("1") >= 2), lambda path: 0.69 if path else 0.1)
    trees = coins.trees(count, branch_settings(2), THRESHOLD)
    chains = coins.groups(count, 3)
    assert len(trees[1]) == len(chains[1]) == 3 * count
    assert trees[0].loc[trees[0]["branch_siblings"] > 0, "step"].tolist() == [1, 2] * count
    weighted = group_gradients(*trees, method("tree_weighted"), odds)
    check_means(weighted, [1 / 8] * 3)
    check_variance(weighted.sum(axis=1), 7 / 128)
    independent = group_gradients(*chains, method("leave_one_out"), odds) / 3
    check_means(independent, [1 / 8] * 3)
    check_variance(independent.sum(axis=1), 9 / 128)
    literal = group_gradients(*trees, method("sibling"), odds)
    check_means(literal, [0.0, 1 / 4, 3 / 8])
    check_variance(literal.sum(axis=1), 0.600234)


def check_prefix_coin(count: int, tolerance: float | None = None) -> None:
    """A coin worth 2 before a bit worth 1, paid out of 3: siblings share the coin, independent episodes do not."""
    odds = [0.5, 0.5]
    coins = Coins(odds, lambda path: (2 * int(path[0]) + int(path[1])) / 3, lambda path: 0.69 if path else 0.1)
    trees = coins.trees(count, branch_settings(1), THRESHOLD)
    siblings = group_gradients(*trees, method("sibling", scale=3.0, suffix="action"), odds) / 2
    independent = group_gradients(*coins.groups(count, 2), method("leave_one_out", scale=3.0), odds)[:, 1] / 2
    check_mean(siblings[:, 1], 1 / 4)
    check_variance(siblings[:, 1], 1 / 16)
    check_mean(independent, 1 / 4)
    check_variance(independent, 5 / 16)
    if tolerance is not None:
        assert abs(siblings[:, 1].var() / independent.var() - 0.2) <= tolerance
    # The coin alone decides two thirds of the return, yet its own turn learns nothing but noise from siblings.
    assert siblings[:, 0].std() > 0.1
    check_mean(siblings[:, 0], 0.0)
    check_mean(group_gradients(*trees, method("tree_weighted", scale=3.0), odds)[:, 0], 1 / 2)


def check_prefix_credit(count: int) -> None:
    """The first of two bits, a one with chance 1/4, is all that is paid; the point is at the second."""
    odds = [0.25, 0.5]
    coins = Coins(odds, lambda path: float(path[0]), lambda path: 0.69 if path else 0.1)
    trees = coins.trees(count, branch_settings(1), THRESHOLD)
    assert not group_gradients(*trees, method("sibling"), odds).any()
    check_means(group_gradients(*trees, method("tree_weighted"), odds), [3 / 16, 0.0])


def check_selection_bias(count: int) -> None:
    """The first of three bits is paid, and it is a point if the backbone's is 0: only then is it the most uncertain."""
    odds = [0.3] * 3
    nats = {"": 0.610864, "1": math.log(2)}
    coins = Coins(odds, lambda path: float(path[0]), lambda path: nats.get(path, 0.0))
    rollouts, episodes = coins.trees(count, branch_settings(1, "top_m"))
    chosen = rollouts.loc[(rollouts["branch_siblings"] > 0) & (rollouts["step"] == 0), "group_id"]
    assert (rollouts.loc[rollouts["group_id"].isin(chosen) & (rollouts["branch"] == 0), "action"] == "0")[::3].all()
    own = method("sibling", suffix="action", lam=0.0)
    selected, leaves = _of(rollouts, chosen), _of(episodes, chosen)
    advantages, diagnostics = compute_advantages(selected, leaves, own)
    check_mean(gradients(selected, advantages, odds)[:, 0] / 2, 0.15)
    fresh = advantages.assign(loss_weight=selected["branch"].to_numpy(dtype=float))
    check_mean(gradients(selected, fresh, odds)[:, 0], 0.21)
    leads = advantages.loc[advantages["turn_id"].str.endswith("b0.0"), "advantage"].to_numpy()
    check_mean(leads, -0.3)
    assert diagnostics["backbone_advantage_mean"] == np.mean(leads)
    check_mean(group_gradients(rollouts, episodes, own, odds)[:, 0] / 2, 0.7 * 0.15)
    online = coins.trees(count, branch_settings(1), THRESHOLD)
    check_mean(group_gradients(*online, own, odds)[:, 0] / 2, 0.21)


def _of(frame: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    return frame[frame["group_id"].isin(groups)].reset_index(drop=True)
