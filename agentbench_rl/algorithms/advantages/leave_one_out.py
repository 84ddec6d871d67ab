"""A_i = s_i - mean_{j != i} s_j = n / (n - 1) * (s_i - mean_g), with n the counted scores of group g; no std.

Source: RLOO (arXiv 2402.14740, section 2.2); with a clipped ratio: LOOP (arXiv 2502.01600).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.advantages.kernels import (
    advantage_frame,
    counted_rows,
    group_advantage,
    group_statistics,
)
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.rewards import row_scores
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config import AlgorithmConfig


def leave_one_out(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, config: AlgorithmConfig, values: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Row scores minus the mean of the others. One row per response, in order; critic values are not read.

    With `per_row` statistics "the others" include other rows of the same episode: for parity only.
    """
    rows = trajectory_rows(rollouts, episodes)
    score = row_scores(rollouts, episodes, rows, config.reward)
    group = codes(rollouts["group_id"])[rows.row]
    counted = counted_rows(rows, config.advantage.statistics)
    centred = group_advantage(
        score,
        group,
        counted,
        divide_by_std=False,
        singleton=config.advantage.singleton,
        epsilon=config.advantage.epsilon,
    )
    count = group_statistics(score, group, counted).count
    return advantage_frame(rollouts, rows, centred * (count / np.maximum(count - 1, 1))[group])
