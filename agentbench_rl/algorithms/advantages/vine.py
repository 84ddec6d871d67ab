"""A_t = r_t + V(s_{t+1}) - V(s_t), V(s_t) the mean return of fresh continuations from s_t, V = 0 after the end.

Returns of whole paths give the same difference: what was earned before t stands on both sides, and r_t in the next
state's mean. Fresh continuations estimate V and are not trained on.
Source: VinePPO (arXiv 2410.01679, section 4), with one value per turn where the paper has one per reasoning step.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.algorithms.sibling_groups import SiblingGroups, sibling_groups
from agentbench_rl.config.advantage import Vine


def vine(batch: Batch, settings: Vine) -> Credit:
    """Advantage of every row; a turn before or after whose state the value is not known weighs nothing.

    Diagnostics: of `SiblingGroups`, and the share of turns of backbones that are trained on.
    """
    groups = sibling_groups(batch)
    points = np.arange(len(groups.point_tree))
    compared = groups.compare(points, groups.returns[groups.backbone[groups.point_tree]])
    before = _value(groups, 0)
    over = groups.step == groups.last_step[groups.episode]
    after = np.where(over, groups.returns[groups.episode], _value(groups, 1))
    difference = after - before
    trained = groups.trained & ~groups.fresh & np.isfinite(difference)
    share = float(trained[~groups.fresh].mean()) if (~groups.fresh).any() else 0.0
    return Credit(
        row_advantage=np.where(trained, difference, 0.0),
        row_weight=trained.astype(np.float64),
        diagnostics=groups.diagnostics(compared.backbone_lead, compared.informative) | {"valued_turns": share},
    )


def _value(groups: SiblingGroups, after: int) -> np.ndarray:
    """Mean return of the fresh lines that start `after` steps after each row [rows], NaN without any."""
    if not len(groups.point_tree):
        return np.full(len(groups.step), np.nan)
    fresh = np.flatnonzero(groups.start >= 0)
    everyone = np.ones(len(fresh), dtype=bool)
    means = group_statistics(groups.returns[fresh], groups.start[fresh], everyone).mean
    point = groups.later_point(after)
    return np.where((point >= 0) & (groups.point_step[point] == groups.step + after), means[point], np.nan)
