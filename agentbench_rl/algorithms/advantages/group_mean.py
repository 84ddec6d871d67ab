"""A_i = s_i - mean_g, with s the row scores and g the group.

Source: Dr. GRPO (arXiv 2503.20783, section 3.2).
"""

from __future__ import annotations

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.config.advantage import GroupMean


def group_mean(batch: Batch, settings: GroupMean) -> Credit:
    """Row scores minus their group mean [P]."""
    counted = batch.counted(settings.statistics)
    return Credit(group_advantage(batch.row_scores, batch.group, counted, singleton=settings.singleton))
