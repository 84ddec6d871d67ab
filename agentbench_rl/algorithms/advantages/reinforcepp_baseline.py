"""A_i = whitened (s_i - mean_g) over all tokens of the batch: a long response weighs more; no std of the group.

Source: REINFORCE++-baseline (arXiv 2501.03262, section 3).
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_advantage, group_statistics
from agentbench_rl.algorithms.whitening import whiten
from agentbench_rl.config.advantage import ReinforceppBaseline


def reinforcepp_baseline(batch: Batch, settings: ReinforceppBaseline) -> Credit:
    """Whitened differences to the group mean [P]; with `singleton: zero` groups of one stay out of the whitening."""
    counted = batch.counted(settings.statistics)
    centred = group_advantage(batch.row_scores, batch.group, counted, singleton=settings.singleton)
    weights = batch.lengths[batch.rows.row]
    if settings.singleton == "zero":
        alone = group_statistics(batch.row_scores, batch.group, counted).count == 1
        weights = np.where(alone[batch.group], 0, weights)
    return Credit(whiten(centred, weights))
