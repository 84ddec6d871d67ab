"""A = (r - mean) / (max(std, floor) + epsilon) among the responses at one state, std over n - 1.

r is the step reward of `algorithms.state_scores` plus what the row alone is charged or paid (an invalid action's
penalty). A group of one, one whose spread is below `min_std`, and one that lost a response to a fault teach nothing.
Source: 3SPO (arXiv 2606.09961, section 3); floor and least spread keep a tiny gap from counting as much as a large one.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.algorithms.rewards import local_terms
from agentbench_rl.config.advantage import StateScoreAdvantage
from agentbench_rl.types import ALLOCATION, STEP_REWARD


def state_score(batch: Batch, settings: StateScoreAdvantage) -> Credit:
    """Advantage and weight of every row [rows], on an episode or not.

    A file may hold one round of a search with its ancestors, or any rounds merged: an ancestor without its siblings is
    an incomplete group, and context alone. Diagnostics count the groups; `incomplete_groups` those that lack a response
    and are more than the ancestors of other rows.
    """
    rollouts = batch.rollouts
    rewards = rollouts[STEP_REWARD].to_numpy(dtype=np.float64, na_value=np.nan)
    group = codes(rollouts["tree_id"], rollouts["parent_id"])
    planned = rollouts[ALLOCATION].to_numpy(dtype=np.int64)
    paid = np.bincount(group, np.isfinite(rewards))
    complete = paid[group] == planned
    compared = np.flatnonzero(complete & (planned > 1))
    scores = batch.reward.scale * rewards + local_terms(rollouts, batch.reward, batch.iteration)
    advantage, weight = np.zeros(len(rollouts)), np.zeros(len(rollouts))
    _, siblings = np.unique(group[compared], return_inverse=True)
    statistics = group_statistics(scores[compared], siblings, np.ones(len(compared), dtype=bool))
    varied = (statistics.std > 0.0) & (statistics.std >= settings.min_std)
    divisor = np.maximum(statistics.std, settings.std_floor) + settings.epsilon
    if settings.normalisation == "mean":
        divisor = np.ones(len(divisor))
    centred = scores[compared] - statistics.mean[siblings]
    advantage[compared] = np.where(varied, 1.0 / np.where(varied, divisor, 1.0), 0.0)[siblings] * centred
    weight[compared] = varied[siblings]
    context = rollouts["turn_id"].isin(rollouts["parent_id"]).to_numpy() & np.isfinite(rewards)
    lost = np.unique(group[~complete & ~context])
    diagnostics = {
        "groups": float(len(varied)),
        "singleton_groups": float(np.count_nonzero(complete & (planned == 1))),
        "incomplete_groups": float(len(lost)),
        "frac_zero_std": float(1.0 - varied.mean()) if len(varied) else 0.0,
    }
    return Credit(row_advantage=advantage, row_weight=weight, diagnostics=diagnostics)
