"""What an estimator reads and what it returns: rows and episodes in, credit per response or per token out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.ragged import row_sums
from agentbench_rl.algorithms.rewards import episode_returns, kl_rewards, local_terms, turn_rewards
from agentbench_rl.algorithms.trajectories import TrajectoryRows
from agentbench_rl.config.advantage import Statistics
from agentbench_rl.config.algorithm import RewardConfig


@dataclass(frozen=True)
class Batch:
    """Completed rollouts (every row lies on an episode) and episodes (without infrastructure faults) of one batch.

    rollouts: their index is the position in the file. rows: the P pairs of a row and an episode it lies on. scores:
    flat token arrays [S] of `scores.parquet` by column, in the order of the rollouts' rows and their tokens; absent
    columns are absent keys. final_values: the critic's value of the state after each row [rows], NaN where there is
    none; None where the file has no such column. greedy: unscaled return of a group's greedy episode by group_id.
    """

    rollouts: pd.DataFrame
    episodes: pd.DataFrame
    rows: TrajectoryRows
    reward: RewardConfig
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    final_values: np.ndarray | None = None
    iteration: int = 0
    greedy: Mapping[object, float] = field(default_factory=dict)

    @cached_property
    def group(self) -> np.ndarray:
        """Group code of every pair [P]."""
        return np.asarray(codes(self.rollouts["group_id"])[self.rows.row])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Response tokens of every row [rows], int64; 1 where the file does not tell."""
        return self.rollouts["response_tokens"].to_numpy(dtype=np.int64)

    @cached_property
    def returns(self) -> np.ndarray:
        """Unscaled return of every episode [E], by the reward view."""
        return episode_returns(self.rollouts, self.episodes, self.rows, self.reward.view)

    @cached_property
    def episode_scores(self) -> np.ndarray:
        """Scaled return of every pair's episode [P]."""
        return np.asarray(self.reward.scale * self.returns[self.rows.episode])

    @cached_property
    def local_scores(self) -> np.ndarray:
        """What every pair's row alone is charged (< 0) or paid (> 0) [P], in units of the scaled reward."""
        return np.asarray(local_terms(self.rollouts, self.reward, self.iteration)[self.rows.row])

    @cached_property
    def row_scores(self) -> np.ndarray:
        """Score of every pair [P]: the episode's return plus what the row alone is charged or paid, its KL included."""
        scores = self.episode_scores + self.local_scores
        if self.reward.kl_coefficient > 0:
            scores = scores + row_sums(kl_rewards(self.scores, self.reward), self.lengths)[self.rows.row]
        return np.asarray(scores)

    @cached_property
    def turn_rewards(self) -> np.ndarray:
        """Reward of every pair's transition [P], scaled."""
        return turn_rewards(self.rollouts, self.episodes, self.rows, self.reward)

    @cached_property
    def episode_groups(self) -> np.ndarray:
        """Group code of every episode [E]."""
        groups = np.empty(len(self.episodes), dtype=np.int64)
        groups[self.rows.episode] = self.group
        return groups

    def per_row(self, values: np.ndarray) -> np.ndarray:
        """Mean of the values [P] of each row's pairs [rows]."""
        size = len(self.rollouts)
        return np.asarray(np.bincount(self.rows.row, values, size) / np.bincount(self.rows.row, minlength=size))

    def counted(self, statistics: Statistics) -> np.ndarray:
        """Which pairs [P] enter the statistics of their group."""
        return self.rows.first if statistics == "per_trajectory" else np.ones(len(self.rows.row), dtype=bool)


@dataclass(frozen=True)
class Credit:
    """What the responses are worth: per pair [P], per row [rows], or `token_advantages` [S] in the order of the rows.

    row_weight: loss weight of every row [rows], with `row_advantage`; 0: the row is not trained on. value_targets: per
    token [S]; turn_value_targets: per row [rows], for the state before its response. diagnostics: numbers about the
    batch.
    """

    advantage: np.ndarray | None = None
    row_advantage: np.ndarray | None = None
    row_weight: np.ndarray | None = None
    token_advantages: np.ndarray | None = None
    value_targets: np.ndarray | None = None
    turn_value_targets: np.ndarray | None = None
    diagnostics: dict[str, float] = field(default_factory=dict)
