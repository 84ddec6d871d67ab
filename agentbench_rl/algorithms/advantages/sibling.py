"""A^(t,k) = G^(t,k) - mean_{j != k} G^(t,j) among the siblings k at branch point t, the backbone's event first (k = 1).

No standard deviation, no critic. A fresh continuation carries A^(t,k) on all its turns, or on its first alone; the
backbone carries A^(t,1) of its last point on the turns from there on. Of an earlier turn u, by `prefix`, over the
points t >= u: nearest: lam^(t - u) A^(t,1) of the first; sum: of all of them; mean: the sum over their number.
Source: BPO (arXiv 2607.14171, sections 4.1 to 4.3); the paper leaves the rule for several points open. What a turn
before a point gets has mean zero, so it teaches nothing in expectation; `root_weight` adds leave-one-out over the
backbones of the task's trees.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.sibling_groups import SiblingGroups, leave_one_out_leads, sibling_groups
from agentbench_rl.config.advantage import Sibling


def sibling(batch: Batch, settings: Sibling) -> Credit:
    """Advantage and loss weight of every row; rows of rejected groups weigh nothing.

    `replicated` trains a shared turn once per sibling that has it in its path: the row gets the mean of the copies'
    advantages and their number as weight. Diagnostics: of `SiblingGroups`.
    """
    groups = sibling_groups(batch)
    points = np.arange(len(groups.point_tree))
    compared = groups.compare(points, groups.returns[groups.backbone[groups.point_tree]])
    leads = np.zeros(len(groups.returns))
    leads[compared.fresh] = compared.fresh_lead
    on_backbone = _on_backbone(groups, compared.backbone_lead, settings)
    weight = groups.trained.astype(np.float64)
    if settings.layout == "replicated":
        copies, total = _copies(groups, compared.backbone_lead, settings.lam)
        on_backbone = (on_backbone + total) / (1.0 + copies)
        weight = np.where(groups.fresh, weight, weight * (1.0 + copies))
    if settings.root_weight > 0.0:
        on_backbone = on_backbone + settings.root_weight * _root_leads(batch, groups)
    advantage = np.where(groups.fresh, _on_fresh(groups, leads, settings), on_backbone)
    advantage = np.where(groups.trained, advantage, 0.0)
    diagnostics = groups.diagnostics(compared.backbone_lead, compared.informative)
    return Credit(row_advantage=advantage, row_weight=weight, diagnostics=diagnostics)


def _on_fresh(groups: SiblingGroups, leads: np.ndarray, settings: Sibling) -> np.ndarray:
    """Lead of each row's own line [rows], on its first turn alone where `suffix` is `action`."""
    advantage = leads[groups.episode]
    if settings.suffix == "suffix" or not len(groups.point_tree):
        return np.asarray(advantage)
    return np.where(groups.step == groups.point_step[groups.start[groups.episode]], advantage, 0.0)


def _on_backbone(groups: SiblingGroups, leads: np.ndarray, settings: Sibling) -> np.ndarray:
    """What each row would get on the backbone of its tree [rows]; leads [P]."""
    if not len(leads):
        return np.zeros(len(groups.step))
    values = leads
    if settings.prefix != "nearest":
        values = groups.discounted_sums(leads, settings.lam)
    if settings.prefix == "mean":
        values = values / groups.discounted_sums(np.ones(len(leads)), 1.0)
    later, earlier = groups.later_point(), groups.earlier_point()
    advantage = settings.lam ** (groups.point_step[later] - groups.step).clip(0) * values[later]
    suffix = leads[earlier] if settings.suffix == "suffix" else 0.0
    return np.where(later >= 0, advantage, np.where(earlier >= 0, suffix, 0.0))


def _copies(groups: SiblingGroups, leads: np.ndarray, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Number of fresh lines that start after a row of the backbone, and their discounted leads' sum: both [rows].

    The leads of the fresh siblings of a point add up to minus that of the backbone.
    """
    if not len(leads):
        return np.zeros(len(groups.step)), np.zeros(len(groups.step))
    later = groups.later_point(after=1)
    number = groups.discounted_sums(groups.sizes - 1.0, 1.0)[later]
    gap = (groups.point_step[later] - groups.step).clip(0)
    total = -(lam**gap) * groups.discounted_sums(leads, lam)[later]
    return np.where(later >= 0, number, 0.0), np.where(later >= 0, total, 0.0)


def _root_leads(batch: Batch, groups: SiblingGroups) -> np.ndarray:
    """Lead of the backbone of each row's tree over the other backbones of its task [rows]; 0 without another."""
    leads = np.zeros(len(groups.backbone))
    episodes = groups.backbone[groups.played]
    leads[groups.played] = leave_one_out_leads(groups.returns[episodes], batch.episode_groups[episodes])
    return np.asarray(leads[groups.tree])
