"""Credit assignment: a name for each estimator, and the one function that stages call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.advantages.gigpo import gigpo
from agentbench_rl.algorithms.advantages.group_mean import group_mean
from agentbench_rl.algorithms.advantages.group_zscore import group_zscore
from agentbench_rl.algorithms.advantages.kernels import group_statistics
from agentbench_rl.algorithms.advantages.leave_one_out import leave_one_out
from agentbench_rl.algorithms.frames import codes, complete_episodes, complete_rollouts
from agentbench_rl.algorithms.rewards import episode_returns
from agentbench_rl.algorithms.trajectories import TrajectoryRows, trajectory_rows
from agentbench_rl.config import AlgorithmConfig
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS

Estimator = Callable[[pd.DataFrame, pd.DataFrame, AlgorithmConfig, pd.DataFrame | None], pd.DataFrame]

ESTIMATORS: dict[str, Estimator] = {
    "group_zscore": group_zscore,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "gigpo": gigpo,
}


def compute_advantages(
    rollouts: pd.DataFrame,
    episodes: pd.DataFrame,
    algorithm: AlgorithmConfig,
    values: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the advantages of all trained responses and diagnostics of the batch.

    Frames follow the file contract; a foreign frame may lack the optional columns. Rows that lie only on episodes
    with an infrastructure ending, or on none, are dropped before anything is computed.
    Columns: turn_id, event_id, advantage, loss_weight, in the rollouts' row order.
    Raises AgentRLError when a required column is missing or the rollout graph is broken.
    """
    rollouts, all_episodes = complete_rollouts(rollouts), complete_episodes(episodes)
    fault = all_episodes["ending"].isin([str(ending) for ending in INFRASTRUCTURE_ENDINGS])
    episodes = all_episodes[~fault].reset_index(drop=True)
    rows = trajectory_rows(rollouts, episodes)
    trained = np.unique(rows.row)
    diagnostics = {
        "episodes": float(len(episodes)),
        "dropped_episodes": float(fault.sum()),
        "dropped_rows": float(len(rollouts) - len(trained)),
    }
    if not len(episodes):
        empty = rollouts[["turn_id", "event_id"]].iloc[:0]
        return empty.assign(advantage=0.0, loss_weight=0.0), diagnostics
    diagnostics |= _group_diagnostics(rollouts, episodes, rows)
    rollouts = rollouts.iloc[trained].reset_index(drop=True)
    frame = ESTIMATORS[algorithm.advantage.estimator](rollouts, episodes, algorithm, values)
    diagnostics |= frame.attrs.pop("diagnostics", {})
    advantage = frame["advantage"].to_numpy()
    diagnostics["advantage_mean"] = float(advantage.mean())
    diagnostics["advantage_std"] = float(advantage.std())
    diagnostics["share_zero_advantage"] = float(np.mean(advantage == 0.0))
    return frame, diagnostics


def _group_diagnostics(rollouts: pd.DataFrame, episodes: pd.DataFrame, rows: TrajectoryRows) -> dict[str, float]:
    """Unscaled returns, and how many groups carry no signal: groups of one, and groups whose returns are equal."""
    returns = episode_returns(rollouts, episodes, rows)
    group = codes(rollouts["group_id"].iloc[rows.row[rows.first]])
    statistics = group_statistics(returns[rows.episode[rows.first]], group, np.ones(len(group), dtype=bool))
    several = statistics.count > 1
    return {
        "groups": float(len(several)),
        "singleton_groups": float((~several).sum()),
        "frac_zero_std": float((statistics.std[several] == 0.0).mean()) if several.any() else 0.0,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
    }
