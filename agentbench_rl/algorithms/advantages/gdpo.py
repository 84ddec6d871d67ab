"""A_i = whitened sum_c w_c * z_c(i), over all tokens of the batch; z_c: group z-score of reward component c.

Components of an episode: its row scores; its summed dense reward; the share of its turns with a valid action. Each is
normalised by itself, so that none drowns another. Groups of one get nothing.
Source: GDPO (arXiv 2601.05242, equations 4 to 6).
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.algorithms.rewards import paid, path_sums
from agentbench_rl.algorithms.whitening import whiten
from agentbench_rl.config.advantage import Gdpo


def gdpo(batch: Batch, settings: Gdpo) -> Credit:
    """Whitened weighted sum of z-scores [P]; raises AgentRLError where a dense reward is needed and null."""
    rows = batch.rows
    components = [(settings.outcome_weight, batch.row_scores)]
    if settings.process_weight > 0:
        dense = path_sums(paid(batch.rollouts, rows, "process"), rows, len(batch.episodes))
        components.append((settings.process_weight, dense[rows.episode]))
    if settings.valid_weight > 0:
        valid = np.bincount(rows.episode, batch.rollouts["valid"].to_numpy(dtype=bool)[rows.row], len(batch.episodes))
        components.append((settings.valid_weight, (valid / np.bincount(rows.episode))[rows.episode]))
    total = np.zeros(len(rows.row))
    for weight, values in components:
        total += weight * group_advantage(values, batch.group, rows.first, singleton="zero", epsilon=settings.epsilon)
    return Credit(whiten(total, batch.lengths[rows.row]))
