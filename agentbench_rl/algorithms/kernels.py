"""Group statistics: mean and sample standard deviation (n - 1; n on demand) of scores per group.

`per_row` counts every row, so long episodes weigh more; `per_trajectory` counts the first row of each episode once.
Sums run over sorted values, so neither the order of the rows nor the names of the groups changes a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentbench_rl.config.advantage import Singleton


@dataclass(frozen=True)
class GroupStatistics:
    """mean [G], std [G] (0 where fewer than two or all equal), count [G] of the counted values of each group."""

    mean: np.ndarray
    std: np.ndarray
    count: np.ndarray


def group_statistics(
    values: np.ndarray, groups: np.ndarray, counted: np.ndarray, *, population: bool = False
) -> GroupStatistics:
    """Statistics of values [P] by group code [P] over the counted [P] ones, at least one in each group.

    `population`: std over n, not n - 1.
    """
    size = int(groups.max(initial=-1)) + 1
    order = np.lexsort((values, groups))
    order = order[counted[order]]
    values, groups = values[order], groups[order]
    count = np.bincount(groups, minlength=size)
    end = np.cumsum(count)
    lowest, highest = values[end - count], values[end - 1]
    # A mean of equal values may differ from them in the last bit, which a tiny std would blow up.
    constant = lowest == highest
    mean = np.where(constant, lowest, np.bincount(groups, values, size) / count)
    squares = np.bincount(groups, (values - mean[groups]) ** 2, size)
    std = np.where(constant, 0.0, np.sqrt(squares / np.maximum(count if population else count - 1, 1)))
    return GroupStatistics(mean, std, count)


def group_advantage(
    values: np.ndarray,
    groups: np.ndarray,
    counted: np.ndarray,
    *,
    singleton: Singleton,
    epsilon: float | None = None,
    population: bool = False,
) -> np.ndarray:
    """(value - mean of its group) [/ (std + epsilon), where an epsilon is given] for values [P].

    A group of one: all its rows get 0 (`zero`), or mean 0 and std 1 (`raw`). Where all counted values are equal the
    deviation of an uncounted row (a penalised later turn) stays undivided: over epsilon it would exceed 1e5.
    """
    statistics = group_statistics(values, groups, counted, population=population)
    alone = statistics.count == 1
    centred = values - np.where(alone & (singleton == "raw"), 0.0, statistics.mean)[groups]
    if singleton == "zero":
        centred = np.where(alone[groups], 0.0, centred)
    if epsilon is None:
        return np.asarray(centred)
    std = np.where(alone & (singleton == "raw"), 1.0, statistics.std)
    return np.asarray(centred / np.where(std == 0.0, 1.0, std + epsilon)[groups])
