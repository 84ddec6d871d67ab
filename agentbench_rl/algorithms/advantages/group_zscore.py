"""A_i = (s_i - mean_g) / (std_g + epsilon), with s the row scores and g the group.

Source: GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1).
"""

from __future__ import annotations

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.config.advantage import GroupZscore


def group_zscore(batch: Batch, settings: GroupZscore) -> Credit:
    """Group z-score of the row scores [P]."""
    counted = batch.counted(settings.statistics)
    return Credit(
        group_advantage(batch.row_scores, batch.group, counted, singleton=settings.singleton, epsilon=settings.epsilon)
    )
