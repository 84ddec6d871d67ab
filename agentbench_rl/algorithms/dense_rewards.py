"""RSPO's phase 1: the host's estimator, with dense rewards where the outcome stands otherwise.

Source: arXiv 2607.04713. A turn's dense reward is in (-1, 1); a group estimator sees their sum over the episode, on its
last turn or each at its own. Noise N(0, sigma) on each is the paper's robustness test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.frames import complete_episodes, complete_rollouts
from agentbench_rl.algorithms.rewards import paid, path_sums
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.types import DENSE_LIMIT, INFRASTRUCTURE_ENDINGS, AgentRLError

#: What to do where the environment has no dense reward.
LEARNED = "schedule.dense_reward: model learns them from outcomes, and schedule.source: outcome explores without"


def explorer_method(method: AlgorithmConfig, schedule: RewardSwap) -> AlgorithmConfig:
    """The method as the explorer is trained: with dense rewards, unless its source says that the outcome teaches it."""
    if schedule.source != "dense":
        return method
    scale = method.reward.scale * schedule.dense_scale
    return method.model_copy(update={"reward": method.reward.model_copy(update={"view": "process", "scale": scale})})


def dense_rewards(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, schedule: RewardSwap, seed: Sequence[int]
) -> pd.DataFrame:
    """The rollouts with `process_reward` as phase 1 credits it; null on rows that lie on no healthy episode.

    Each reward gets its noise, is clipped to (-1, 1), and is put where `dense_placement` says: their sum on an
    episode's last turn, 0 before, or each at its own turn. seed: non-negative numbers that name the update; the noise
    of a turn depends on them and its id alone.
    Raises AgentRLError for a dense reward that is null, not finite, or not in (-1, 1).
    """
    completed, played = complete_rollouts(rollouts), complete_episodes(episodes)
    fault = played["ending"].isin([str(ending) for ending in INFRASTRUCTURE_ENDINGS])
    healthy = played[~fault].reset_index(drop=True)
    rows = trajectory_rows(completed, healthy)
    remedy = "" if schedule.dense_reward == "model" else f", and the environment has none there: {LEARNED}"
    rewards = paid(completed, rows, "process", remedy)
    outside = np.flatnonzero(np.abs(rewards) >= 1.0)
    if len(outside):
        turn = completed["turn_id"].iloc[int(rows.row[outside[0]])]
        raise AgentRLError(
            f"rollouts: process_reward of turn {turn!r} is {rewards[outside[0]]}; dense rewards must lie in (-1, 1): "
            "scale what the environment or the reward model returns"
        )
    if schedule.dense_noise > 0:
        rewards = rewards + schedule.dense_noise * _noise(completed["turn_id"].iloc[rows.row], seed)
        rewards = np.clip(rewards, -DENSE_LIMIT, DENSE_LIMIT)
    if schedule.dense_placement == "last":
        totals = path_sums(rewards, rows, len(healthy))
        rewards = np.where(rows.level == 0, totals[rows.episode], 0.0)
    placed = np.full(len(completed), np.nan)
    placed[rows.row] = rewards
    return rollouts.reset_index(drop=True).assign(process_reward=placed)


def _noise(turn_ids: pd.Series, seed: Sequence[int]) -> np.ndarray:
    """A standard normal number for every turn."""
    keys = [int.from_bytes(hashlib.blake2b(turn.encode(), digest_size=16).digest()) for turn in turn_ids]
    return np.array([np.random.default_rng([*seed, key]).standard_normal() for key in keys])
