"""Row score s_i = scale * R(tau_i) + what row i alone is charged or paid; R by the reward view.

The return of the whole episode stands on every row of it. `outcome` sums the environment's rewards, `process` the
dense ones, `success` pays 1 for an episode that ended in success and nothing for any other (verl-agent's WebShop).
Charges and bonuses are local to their row: neither part of R nor propagated back (verl-agent's layout). They are in
units of the scaled reward: the penalty of an invalid action; the soft overlong punishment (DAPO, arXiv 2503.14476,
equation 13); a bonus per tool call, decayed by a cosine (SPEAR, arXiv 2509.22601); and where the method takes the KL to
the start policy from the reward, its k1 estimate over the row's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.trajectories import TrajectoryRows
from agentbench_rl.config.algorithm import OverlongConfig, RewardConfig, RewardView
from agentbench_rl.types import AgentRLError, Ending


def episode_returns(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, rows: TrajectoryRows, view: RewardView
) -> np.ndarray:
    """Unscaled return of every episode [E]; `outcome`: the file's, or where it is null the sum of rewards.

    Raises AgentRLError for a return that is not known or not finite.
    """
    if view == "success":
        return successes(episodes)
    if view == "process":
        return path_sums(paid(rollouts, rows, "process"), rows, len(episodes))
    recorded = episodes["return"].to_numpy()
    unknown = np.isnan(recorded)
    if unknown.any():
        summed = path_sums(rollouts["reward"].to_numpy()[rows.row], rows, len(episodes))
        recorded = np.where(unknown, summed, recorded)
    lost = np.flatnonzero(~np.isfinite(recorded))
    if len(lost):
        episode = episodes["episode_id"].iloc[int(lost[0])]
        raise AgentRLError(f"episodes: return of {episode!r} is null or not finite, and so is a reward on its path")
    return recorded


def path_sums(values: np.ndarray, rows: TrajectoryRows, episodes: int) -> np.ndarray:
    """Sum of the values [P] of member 0 of every event, from root to leaf, for each episode."""
    return np.bincount(rows.episode, np.where(rows.lead, values, 0.0), episodes)


def successes(episodes: pd.DataFrame) -> np.ndarray:
    """1 for every episode [E] that ended in success, else 0."""
    return np.asarray(episodes["ending"] == str(Ending.SUCCESS), dtype=np.float64)


def turn_rewards(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, rows: TrajectoryRows, config: RewardConfig
) -> np.ndarray:
    """Scaled reward of every pair's transition [P]; raises AgentRLError where it is null or not finite."""
    if config.view == "success":
        return np.asarray(config.scale * np.where(rows.level == 0, successes(episodes)[rows.episode], 0.0))
    return config.scale * paid(rollouts, rows, config.view)


def paid(
    rollouts: pd.DataFrame, rows: TrajectoryRows, view: Literal["outcome", "process"], remedy: str = ""
) -> np.ndarray:
    """Unscaled reward of every pair's transition [P]; raises AgentRLError where it is null or not finite.

    remedy: what the error says beside that the method needs them.
    """
    column, kind = ("reward", "rewards") if view == "outcome" else ("process_reward", "dense rewards")
    rewards = rollouts[column].to_numpy(dtype=np.float64, na_value=np.nan)[rows.row]
    unknown = np.flatnonzero(~np.isfinite(rewards) & rows.lead)
    if len(unknown):
        turn = rollouts["turn_id"].iloc[int(rows.row[unknown[0]])]
        raise AgentRLError(
            f"rollouts: {column} of turn {turn!r} is null or not finite, but its episode ended without a fault; "
            f"this method needs {kind}{remedy}"
        )
    return np.asarray(rewards)


def local_terms(rollouts: pd.DataFrame, config: RewardConfig, iteration: int) -> np.ndarray:
    """What every row alone is charged (< 0) or paid (> 0) [rows], in units of the scaled reward."""
    terms = -config.invalid_action_penalty * ~rollouts["valid"].to_numpy(dtype=bool)
    if config.overlong is not None:
        terms = terms + overlong_penalties(rollouts["response_tokens"].to_numpy(), config.overlong)
    if config.tool_call_bonus is not None:
        calls = rollouts["tool_calls"]
        if calls.isna().any():
            turn = rollouts["turn_id"][calls.isna()].iloc[0]
            raise AgentRLError(f"rollouts: tool_calls of turn {turn!r} is null; the tool call bonus needs them")
        progress = min(iteration / config.tool_call_bonus.decay_iterations, 1.0)
        decay = (1.0 + math.cos(math.pi * progress)) / 2.0
        terms = terms + config.tool_call_bonus.value * decay * calls.to_numpy(dtype=np.float64)
    return np.asarray(terms)


def kl_rewards(scores: Mapping[str, np.ndarray], config: RewardConfig) -> np.ndarray:
    """-beta * k1 of every token [S], k1 = old - reference log-prob, beta = `reward.kl_coefficient`.

    Raises AgentRLError where the log-probs are missing.
    """
    for name in ("old_logprobs", "reference_logprobs"):
        if name not in scores:
            raise AgentRLError(
                f"reward.kl_coefficient needs the log-probs of scores.parquet, column {name}; run the score stage"
            )
    rewards: np.ndarray = scores["reference_logprobs"] - scores["old_logprobs"]
    rewards *= config.kl_coefficient
    return rewards


def overlong_penalties(tokens: np.ndarray, config: OverlongConfig) -> np.ndarray:
    """0 up to max - cache tokens, then linear, -factor from `max_tokens` on [rows]."""
    excess = (tokens - (config.max_tokens - config.cache_tokens)) / config.cache_tokens
    return np.asarray(-config.factor * np.clip(excess, 0.0, 1.0))
