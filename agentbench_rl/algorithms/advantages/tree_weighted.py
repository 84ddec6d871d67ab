"""The unbiased estimator of a tree: leave-one-out on backed-up returns, weighted by the share of the tree.

Points t_1 < ... < t_M of the backbone, K_m siblings each. Y_{M+1} = G of the backbone; for m = M ... 1, with
z_1 = Y_{m+1} and z_k = G^(t_m,k) of the fresh siblings: Y_m = mean_k z_k, A_m^(k) = z_k - mean_{j != k} z_j.
A_0 = Y_1 - b, b the mean Y_1 of other trees. A turn of the backbone, with m points at or before it, gets A_m^(1) and
the weight 1 / (K_1 ... K_m); a fresh continuation from t_m gets A_m^(k) and the same weight. The sum over all turns of
weight times advantage times score is an unbiased estimate of the gradient of the expected return, where it is decided
before a turn is sampled whether to branch there. Weights: OPTS-TTPO (2609.40035).
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.sibling_groups import leave_one_out_leads, sibling_groups
from agentbench_rl.config.advantage import TreeWeighted


def tree_weighted(batch: Batch, settings: TreeWeighted) -> Credit:
    """Advantage and loss weight of every row; rejected points count as if nothing had branched there.

    A tree without another to compare with has A_0 = 0. Diagnostics: of `SiblingGroups`.
    """
    groups = sibling_groups(batch)
    count = len(groups.point_tree)
    # A tree whose backbone has no episode has no points, and is not trained on.
    backed_up = np.where(groups.backbone >= 0, groups.returns[groups.backbone], 0.0)
    leads, informative = np.zeros(count), np.zeros(count, dtype=bool)
    fresh_leads = np.zeros(len(groups.returns))
    for rank in range(int(groups.ranks.max(initial=-1)), -1, -1):
        points = np.flatnonzero(groups.ranks == rank)
        trees = groups.point_tree[points]
        compared = groups.compare(points, backed_up[trees])
        leads[points], informative[points] = compared.backbone_lead, compared.informative
        fresh_leads[compared.fresh] = compared.fresh_lead
        backed_up[trees] = compared.mean
    point = np.where(groups.fresh, groups.start[groups.episode], groups.earlier_point())
    root = np.zeros(len(groups.backbone))
    same = batch.episode_groups[groups.backbone[groups.played]]
    among = same if settings.baseline == "task" else np.zeros(len(groups.played), dtype=np.int64)
    root[groups.played] = leave_one_out_leads(backed_up[groups.played], among)
    # One more at the end, for rows without a point: position -1.
    leads, shares = np.append(leads, 0.0), np.append(_shares(groups.ranks, groups.sizes), 1.0)
    on_backbone = np.where(point >= 0, leads[point], root[groups.tree])
    advantage = np.where(groups.fresh, fresh_leads[groups.episode], on_backbone)
    return Credit(
        row_advantage=np.where(groups.trained, advantage, 0.0),
        row_weight=np.where(groups.trained, shares[point], 0.0),
        diagnostics=groups.diagnostics(leads[:-1], informative),
    )


def _shares(ranks: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """1 over the product of the sizes of every point [P] and the points before it in its tree."""
    shares = 1.0 / sizes
    for rank in range(1, int(ranks.max(initial=0)) + 1):
        points = np.flatnonzero(ranks == rank)
        shares[points] *= shares[points - 1]
    return np.asarray(shares)
