"""A_i = (s_i - s_second) / (std_g + epsilon) for the rows of the group's best episode, 0 for all others.

s_second: score of the second best episode. Two best episodes have no lead over each other: the group gets nothing.
Source: Pass@k policy optimisation (arXiv 2503.19595, section 3), whose gradient goes to the best sample alone.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.config.advantage import PassAtK


def pass_at_k(batch: Batch, settings: PassAtK) -> Credit:
    """Lead of the best episode [P]; groups of one get nothing."""
    rows = batch.rows
    first = np.flatnonzero(rows.first)
    score, group = batch.row_scores[first], batch.group[first]
    episode_score = np.zeros(len(batch.episodes))
    episode_score[rows.episode[first]] = score
    statistics = group_statistics(batch.row_scores, batch.group, rows.first)
    ordered = score[np.lexsort((score, group))]
    end = np.cumsum(statistics.count)
    best, second = ordered[end - 1], ordered[end - np.minimum(statistics.count, 2)]
    leads = (episode_score[rows.episode] == best[batch.group]) & (best > second)[batch.group]
    advantage = np.where(leads, batch.row_scores - second[batch.group], 0.0)
    if settings.divide_by_std:
        advantage = advantage / (statistics.std + settings.epsilon)[batch.group]
    return Credit(np.asarray(advantage))
