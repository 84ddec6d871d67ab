"""Credit assignment: a name for each estimator, and the one function that stages call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.advantages.gae import gae
from agentbench_rl.algorithms.advantages.gigpo import gigpo
from agentbench_rl.algorithms.advantages.group_mean import group_mean
from agentbench_rl.algorithms.advantages.group_zscore import group_zscore
from agentbench_rl.algorithms.advantages.kernels import group_statistics
from agentbench_rl.algorithms.advantages.leave_one_out import leave_one_out
from agentbench_rl.algorithms.advantages.reinforcepp import reinforcepp
from agentbench_rl.algorithms.advantages.reinforcepp_baseline import reinforcepp_baseline
from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.frames import complete_episodes, complete_rollouts
from agentbench_rl.algorithms.ragged import blocks, to_lists
from agentbench_rl.algorithms.rewards import episode_returns
from agentbench_rl.algorithms.scores import align_scores, final_values, token_scores
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS

#: By `advantage.estimator`; called with the batch and the estimator's own settings.
ESTIMATORS: Mapping[str, Callable[[Batch, Any], Credit]] = {
    "group_zscore": group_zscore,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "reinforcepp": reinforcepp,
    "reinforcepp_baseline": reinforcepp_baseline,
    "gae": gae,
    "gigpo": gigpo,
}


def compute_advantages(
    rollouts: pd.DataFrame,
    episodes: pd.DataFrame,
    algorithm: AlgorithmConfig,
    scores: pd.DataFrame | None = None,
    iteration: int = 0,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the advantages of all trained responses and diagnostics of the batch.

    Frames follow the file contract; a foreign frame may lack the optional columns. Rows that lie only on episodes
    with an infrastructure ending, or on none, are dropped before anything is computed.
    Columns: turn_id, event_id, loss_weight, and advantage or token_advantages, in the rollouts' row order.
    Raises AgentRLError when a required column is missing or the rollout graph is broken.
    """
    rollouts, all_episodes = complete_rollouts(rollouts), complete_episodes(episodes)
    fault = all_episodes["ending"].isin([str(ending) for ending in INFRASTRUCTURE_ENDINGS])
    episodes = all_episodes[~fault].reset_index(drop=True)
    rows = trajectory_rows(rollouts, episodes)
    trained = np.flatnonzero(np.bincount(rows.row, minlength=len(rollouts)))
    diagnostics = {
        "episodes": float(len(episodes)),
        "dropped_episodes": float(fault.sum()),
        "dropped_rows": float(len(rollouts) - len(trained)),
    }
    if not len(episodes):
        empty = rollouts[["turn_id", "event_id"]].iloc[:0]
        return empty.assign(loss_weight=0.0, advantage=0.0), diagnostics
    aligned = None if scores is None else align_scores(rollouts["turn_id"], trained, scores)
    if len(trained) < len(rollouts):
        rollouts = rollouts.iloc[trained].reset_index(drop=True)
        rows = trajectory_rows(rollouts, episodes)
    batch = Batch(rollouts, episodes, rows, algorithm.reward, iteration=iteration)
    if aligned is not None:
        batch = replace(batch, scores=token_scores(rollouts, aligned), final_values=final_values(aligned))
    diagnostics |= _group_diagnostics(batch)
    credit = ESTIMATORS[algorithm.advantage.estimator](batch, algorithm.advantage)
    return _frame(batch, credit), diagnostics | credit.diagnostics | _advantage_diagnostics(batch, credit)


def _frame(batch: Batch, credit: Credit) -> pd.DataFrame:
    """One row per response, in the rollouts' order.

    A response shared by n episodes gets their mean advantage and the loss weight n: what training on every episode
    with its prefix repeated would give.
    """
    shared = np.bincount(batch.rows.row, minlength=len(batch.rollouts))
    frame = batch.rollouts[["turn_id", "event_id"]].assign(loss_weight=shared.astype(np.float64))
    if credit.advantage is not None:
        frame["advantage"] = np.bincount(batch.rows.row, credit.advantage, len(shared)) / shared
    if credit.token_advantages is not None:
        frame["token_advantages"] = to_lists(credit.token_advantages, batch.lengths)
    if credit.value_targets is not None:
        frame["value_targets"] = to_lists(credit.value_targets, batch.lengths)
    if credit.turn_value_targets is not None:
        filled = np.minimum(batch.lengths, 1)
        frame["value_targets"] = to_lists(credit.turn_value_targets[filled == 1], filled)
    return frame


def _advantage_diagnostics(batch: Batch, credit: Credit) -> dict[str, float]:
    values = credit.token_advantages if credit.advantage is None else credit.advantage
    assert values is not None
    size = max(len(values), 1)
    mean = sum(float(values[block].sum(dtype=np.float64)) for block in blocks(len(values))) / size
    squares = sum(float(np.square(values[block].astype(np.float64) - mean).sum()) for block in blocks(len(values)))
    return {
        "advantage_mean": mean,
        "advantage_std": float(np.sqrt(squares / size)),
        "share_zero_advantage": 1.0 - np.count_nonzero(values) / size,
    }


def _group_diagnostics(batch: Batch) -> dict[str, float]:
    """Unscaled returns, and how many groups carry no signal: groups of one, and groups whose returns are equal."""
    rows = batch.rows
    returns = episode_returns(batch.rollouts, batch.episodes, rows)
    statistics = group_statistics(returns[rows.episode], batch.group, rows.first)
    several = statistics.count > 1
    return {
        "groups": float(len(several)),
        "singleton_groups": float((~several).sum()),
        "frac_zero_std": float((statistics.std[several] == 0.0).mean()) if several.any() else 0.0,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
    }
