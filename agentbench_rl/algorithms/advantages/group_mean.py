"""A_i = s_i - mean_g, with s the row scores and g the group.

Source: Dr. GRPO (arXiv 2503.20783, section 3.2).
"""

from __future__ import annotations

import pandas as pd

from agentbench_rl.algorithms.advantages.kernels import advantage_frame, counted_rows, group_advantage
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.rewards import row_scores
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config import AlgorithmConfig


def group_mean(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, config: AlgorithmConfig, values: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Row scores minus their group mean. One row per response, in the rollouts' order; critic values are not read."""
    rows = trajectory_rows(rollouts, episodes)
    advantage = group_advantage(
        row_scores(rollouts, episodes, rows, config.reward),
        codes(rollouts["group_id"])[rows.row],
        counted_rows(rows, config.advantage.statistics),
        divide_by_std=False,
        singleton=config.advantage.singleton,
        epsilon=config.advantage.epsilon,
    )
    return advantage_frame(rollouts, rows, advantage)
