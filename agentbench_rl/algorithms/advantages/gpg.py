"""A_i = alpha * (s_i - mean_g) / f_norm, with alpha = B / (B - M): B groups, M of them without a gradient.

Source: GPG (arXiv 2504.02546, section 3.2), whose alpha makes up for groups of equal rewards. Public code (verl) has
another alpha, rows over rows with a score other than 0, which depends on where the reward has its zero.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.config.advantage import Gpg


def gpg(batch: Batch, settings: Gpg) -> Credit:
    """Rescaled differences to the group mean [P]. Diagnostics: alpha."""
    counted = batch.counted(settings.statistics)
    centred = group_advantage(batch.row_scores, batch.group, counted, singleton=settings.singleton)
    informative = np.bincount(batch.group, centred != 0.0) > 0
    alpha = len(informative) / max(int(informative.sum()), 1)
    return Credit(alpha * centred / settings.f_norm, diagnostics={"gpg_alpha": alpha})
