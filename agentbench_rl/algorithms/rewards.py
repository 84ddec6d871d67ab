"""Reward view `outcome`: row score s_i = scale * R(tau_i) - penalty * [action i invalid].

The return of the whole episode stands on every row of it; the penalty is local to its row: neither part of R nor
propagated back (verl-agent's layout). Turn rewards are the environment's, scaled, without the penalty.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.trajectories import TrajectoryRows
from agentbench_rl.config.algorithm import RewardConfig
from agentbench_rl.types import AgentRLError


def turn_rewards(rollouts: pd.DataFrame, rows: TrajectoryRows, config: RewardConfig) -> np.ndarray:
    """Scaled environment reward of every pair's transition [P]; raises AgentRLError where it is null."""
    rewards = rollouts["reward"].to_numpy()[rows.row]
    unknown = np.isnan(rewards) & rows.lead
    if unknown.any():
        turn = rollouts["turn_id"].iloc[int(rows.row[unknown][0])]
        raise AgentRLError(f"rollouts: reward of turn {turn!r} is null, but its episode ended without a fault")
    return np.asarray(config.scale * rewards)


def invalid_penalties(rollouts: pd.DataFrame, rows: TrajectoryRows, config: RewardConfig) -> np.ndarray:
    """Penalty of every pair's row for an invalid action [P], >= 0, in units of the scaled reward."""
    return np.asarray(config.invalid_action_penalty * ~rollouts["valid"].to_numpy()[rows.row])


def episode_returns(rollouts: pd.DataFrame, episodes: pd.DataFrame, rows: TrajectoryRows) -> np.ndarray:
    """Unscaled return of every episode: the file's, or the sum of rewards from root to leaf where it is null."""
    rewards = rollouts["reward"].to_numpy()[rows.row]
    summed = np.bincount(rows.episode, np.where(rows.lead, rewards, 0.0), len(episodes))
    recorded = episodes["return"].to_numpy()
    returns = np.where(np.isnan(recorded), summed, recorded)
    if np.isnan(returns).any():
        episode = episodes["episode_id"].to_numpy()[np.isnan(returns)][0]
        raise AgentRLError(f"episodes: return of {episode!r} is null, and so is a reward on its path")
    return returns
