"""A_i = s_i - mean_{j != i} s_j = n / (n - 1) * (s_i - mean_g), with n the counted scores of group g; no std.

Source: RLOO (arXiv 2402.14740, section 2.2); with a clipped ratio: LOOP (arXiv 2502.01600).
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_advantage, group_statistics
from agentbench_rl.config.advantage import LeaveOneOut


def leave_one_out(batch: Batch, settings: LeaveOneOut) -> Credit:
    """Row scores minus the mean of the others [P].

    With `per_row` statistics "the others" include other rows of the same episode: for parity only.
    """
    counted = batch.counted(settings.statistics)
    centred = group_advantage(batch.row_scores, batch.group, counted, singleton=settings.singleton)
    count = group_statistics(batch.row_scores, batch.group, counted).count
    return Credit(centred * (count / np.maximum(count - 1, 1))[batch.group])
