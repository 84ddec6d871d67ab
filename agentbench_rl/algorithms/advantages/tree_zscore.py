"""A_leaf = z-score among the leaves of its tree + z-score among all leaves of its group; `intra`: the former alone.

A leaf is an episode; its score is credited to every response from its root on. Trees of equal leaves, or of one, add
nothing. The public code normalises over the group and then inside each tree: as good as `intra`, since a z-score
ignores affine maps.
Source: Tree-GRPO (arXiv 2509.21240, section 3.3).
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.config.advantage import TreeZscore


def tree_zscore(batch: Batch, settings: TreeZscore) -> Credit:
    """Sum of the two z-scores of the row scores [P]. Diagnostics: the number of trees."""
    trees = codes(batch.rollouts["group_id"], batch.rollouts["tree_id"])[batch.rows.row]
    advantage = _zscore(batch, trees, settings.epsilon)
    if settings.levels == "both":
        advantage = advantage + _zscore(batch, batch.group, settings.epsilon)
    return Credit(advantage, diagnostics={"trees": float(trees.max() + 1)})


def _zscore(batch: Batch, groups: np.ndarray, epsilon: float) -> np.ndarray:
    return group_advantage(batch.row_scores, groups, batch.rows.first, singleton="zero", epsilon=epsilon)
