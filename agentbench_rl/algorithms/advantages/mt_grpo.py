"""A_i = z(r_i) + outcome_weight * z(s_i) for a turn before the last, A_i = z(s_i) for the last turn of an episode.

z(r): dense reward of the turn among the turns of the group at the same step that are not the last of their episode;
z(s): row score within the group.
Source: MT-GRPO (arXiv 2505.11821, section 4.2), whose two turns are read as "before the last" and "last".
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.algorithms.rewards import paid
from agentbench_rl.algorithms.trajectories import discounted_returns
from agentbench_rl.config.advantage import MtGrpo


def mt_grpo(batch: Batch, settings: MtGrpo) -> Credit:
    """Turn part plus outcome part [P]; raises AgentRLError where a dense reward is null."""
    rows = batch.rows
    outcome = group_advantage(
        batch.row_scores, batch.group, rows.first, singleton=settings.singleton, epsilon=settings.epsilon
    )
    before_last = rows.level > 0
    # Without discounting forward, every member of an event gets what the event was paid.
    rewards = discounted_returns(rows, paid(batch.rollouts, rows, "process"), 0.0)[before_last]
    turns = batch.rollouts.iloc[rows.row[before_last]]
    turn_part = np.zeros(len(outcome))
    turn_part[before_last] = group_advantage(
        rewards,
        codes(turns["group_id"], turns["step"]),
        rows.lead[before_last],
        singleton="zero",
        epsilon=settings.epsilon,
    )
    return Credit(turn_part + np.where(before_last, settings.outcome_weight, 1.0) * outcome)
