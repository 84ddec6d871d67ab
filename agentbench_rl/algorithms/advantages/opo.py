"""A_i = s_i - sum_j l_j s_j / sum_j l_j over the episodes j of the group, l their response tokens in all turns.

Source: OPO (arXiv 2505.23585, section 3.2): the baseline of least variance where gradient norms grow with length.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.config.advantage import Opo


def opo(batch: Batch, settings: Opo) -> Credit:
    """Row scores minus the length-weighted mean of their group [P]."""
    rows, size = batch.rows, int(batch.group.max(initial=-1)) + 1
    tokens = np.bincount(rows.episode, batch.lengths[rows.row], len(batch.episodes))
    first = np.flatnonzero(rows.first)
    group, score, weight = batch.group[first], batch.row_scores[first], tokens[rows.episode[first]]
    order = np.lexsort((weight, score, group))
    group, score, weight = group[order], score[order], weight[order]
    count, total = np.bincount(group, minlength=size), np.bincount(group, weight, size)
    end = np.cumsum(count)
    lowest, highest = score[end - count], score[end - 1]
    mean = np.bincount(group, weight * score, size) / np.where(total > 0, total, 1.0)
    baseline = np.where(lowest == highest, lowest, mean)
    alone = count == 1
    advantage = batch.row_scores - np.where(alone, 0.0, baseline)[batch.group]
    if settings.singleton == "zero":
        advantage = np.where(alone[batch.group], 0.0, advantage)
    return Credit(np.asarray(advantage))
