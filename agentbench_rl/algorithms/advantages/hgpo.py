"""A_i = sum_k w_k a_k over the levels k = 1 .. K + 1, with w_k proportional to (k + 1)^alpha.

a_k: step return minus its mean (over the population std + epsilon, n not n - 1) among the rows of the group whose
last k anchors, the own included, are the same in order. Left out of the sum: rows alone at a level, rows with fewer
than k anchors behind them, and a_k = 0. The weights are divided by their sum + epsilon. `base` adds the item k = 0,
the episode advantage.
Source: HGPO (arXiv 2602.22817, section 4); population std, zeros and weights as in its public code.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.advantages.gigpo import anchor_groups, step_returns
from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.config.advantage import Hgpo

#: Less than this is rounding, not credit.
_NOTHING = 1e-9


def hgpo(batch: Batch, settings: Hgpo) -> Credit:
    """Weighted mean of the levels' advantages [P]; raises AgentRLError without anchor keys and for a null reward."""
    total, weights = np.zeros(len(batch.group)), np.zeros(len(batch.group))
    for level, part in _levels(batch, settings):
        weight = np.where(np.abs(part) > _NOTHING, float(level + 1) ** settings.alpha, 0.0)
        total += weight * part
        weights += weight
    return Credit(total / (weights + settings.epsilon))


def _levels(batch: Batch, settings: Hgpo) -> Iterator[tuple[int, np.ndarray]]:
    """Every level k and its advantages [P], 0 for rows that are left out."""
    epsilon = settings.epsilon if settings.normalisation == "mean_std" else None
    if settings.base:
        yield 0, _relative(batch.row_scores, batch.group, batch.rows.first, epsilon)
    returns = step_returns(batch, settings.gamma)
    own = anchor_groups(batch.rollouts, batch.rows, None)
    history = own
    for level in range(1, settings.history + 2):
        groups = history[batch.rows.row]
        inside = groups >= 0
        part = np.zeros(len(groups))
        part[inside] = _relative(returns[inside], groups[inside], np.ones(inside.sum(), dtype=bool), epsilon)
        yield level, part
        history = _longer(own, history, batch.rows.parent_row)


def _relative(values: np.ndarray, groups: np.ndarray, counted: np.ndarray, epsilon: float | None) -> np.ndarray:
    return group_advantage(values, groups, counted, singleton="zero", epsilon=epsilon, population=True)


def _longer(own: np.ndarray, history: np.ndarray, parent_row: np.ndarray) -> np.ndarray:
    """Code of every row's anchors with one more before them [rows]; -1 where the path does not go back so far."""
    before = np.where(parent_row >= 0, history[parent_row], -1)
    known = before >= 0
    longer = np.full(len(own), -1)
    longer[known] = codes(pd.Series(own[known]), pd.Series(before[known]))
    return longer
