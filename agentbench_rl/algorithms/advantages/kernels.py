"""Group statistics: mean and sample standard deviation (n - 1) of scores per group.

`per_row` counts every row, so long episodes weigh more; `per_trajectory` counts the first row of each episode once.
Sums run over sorted values, so neither the order of the rows nor the names of the groups changes a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.trajectories import TrajectoryRows
from agentbench_rl.types import AgentRLError


@dataclass(frozen=True)
class GroupStatistics:
    """mean [G], std [G] (0 where fewer than two or all equal), count [G] of the counted values of each group."""

    mean: np.ndarray
    std: np.ndarray
    count: np.ndarray


def group_statistics(values: np.ndarray, groups: np.ndarray, counted: np.ndarray) -> GroupStatistics:
    """Statistics of values [P] by group code [P] over the counted [P] ones.

    Raises AgentRLError when a group has rows but none that counts.
    """
    size = int(groups.max(initial=-1)) + 1
    order = np.lexsort((values, groups))
    order = order[counted[order]]
    values, groups = values[order], groups[order]
    count = np.bincount(groups, minlength=size)
    if (count == 0).any():
        raise AgentRLError("rollouts: the rows of one episode lie in different groups; group_id is per task and start")
    end = np.cumsum(count)
    lowest, highest = values[end - count], values[end - 1]
    # A mean of equal values may differ from them in the last bit, which a tiny std would blow up.
    constant = lowest == highest
    mean = np.where(constant, lowest, np.bincount(groups, values, size) / count)
    squares = np.bincount(groups, (values - mean[groups]) ** 2, size)
    std = np.where(constant, 0.0, np.sqrt(squares / np.maximum(count - 1, 1)))
    return GroupStatistics(mean, std, count)


def group_advantage(
    values: np.ndarray,
    groups: np.ndarray,
    counted: np.ndarray,
    *,
    divide_by_std: bool,
    singleton: Literal["zero", "raw"],
    epsilon: float,
) -> np.ndarray:
    """(value - mean of its group) [/ (std + epsilon)] for values [P].

    A group of one: all its rows get 0 (`zero`), or mean 0 and std 1 (`raw`). Where all counted values are equal the
    deviation of an uncounted row (a penalised later turn) stays undivided: over epsilon it would exceed 1e5.
    """
    statistics = group_statistics(values, groups, counted)
    alone = statistics.count == 1
    centred = values - np.where(alone & (singleton == "raw"), 0.0, statistics.mean)[groups]
    if singleton == "zero":
        centred = np.where(alone[groups], 0.0, centred)
    if not divide_by_std:
        return np.asarray(centred)
    std = np.where(alone & (singleton == "raw"), 1.0, statistics.std)
    return np.asarray(centred / np.where(std == 0.0, 1.0, std + epsilon)[groups])


def counted_rows(rows: TrajectoryRows, statistics: Literal["per_trajectory", "per_row"]) -> np.ndarray:
    """Which pairs [P] enter the statistics of their group."""
    return rows.first if statistics == "per_trajectory" else np.ones(len(rows.row), dtype=bool)


def advantage_frame(rollouts: pd.DataFrame, rows: TrajectoryRows, advantage: np.ndarray) -> pd.DataFrame:
    """One row per response, in the rollouts' order, from advantages [P] of (row, episode) pairs.

    A response shared by n episodes gets their mean advantage and the loss weight n: what training on every episode
    with its prefix repeated would give.
    """
    shared = np.bincount(rows.row, minlength=len(rollouts))
    total = np.bincount(rows.row, advantage, len(rollouts))
    columns = {"turn_id": rollouts["turn_id"], "event_id": rollouts["event_id"]}
    return pd.DataFrame({**columns, "advantage": total / shared, "loss_weight": shared.astype(np.float64)})
