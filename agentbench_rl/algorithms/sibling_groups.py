"""Trees of a backbone and of fresh continuations from it: branch points, and who is compared there.

A line is what one (tree, branch) sampled: the backbone, branch 0, or a fresh continuation. A point is a state of the
backbone that lines start at; its siblings are the event of the backbone that follows and the first events of those
lines. A point with fewer siblings than `branch_siblings` plans lost one to a fault: it is rejected whole, and so is one
whose backbone has no episode. Without that column all siblings that are there were planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.batch import Batch
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_advantage, group_statistics
from agentbench_rl.types import SIBLINGS, AgentRLError


@dataclass(frozen=True)
class Compared:
    """Siblings of some points: leads over the mean of the others, of backbones and of fresh lines, by a value each.

    points [p]; backbone_lead [p]; mean [p] of all siblings; informative [p]: they differ; fresh [f]: episodes;
    fresh_lead [f].
    """

    points: np.ndarray
    backbone_lead: np.ndarray
    mean: np.ndarray
    informative: np.ndarray
    fresh: np.ndarray
    fresh_lead: np.ndarray


@dataclass(frozen=True)
class SiblingGroups:
    """T trees, their E episodes and P complete points; points are ordered by tree and step.

    tree, step, fresh [rows]: fresh: the row is not of a backbone. episode [rows]: the one that its line ends in, -1
    where a fault ended it. backbone [T]: episode, or -1. last_step [E]: step of the leaf. start [E]: point that a fresh
    line starts at, -1 for backbones and rejected lines. point_tree, point_step [P]. rejected: number of points.
    returns [E]: scaled return plus what the rows of the path are charged or paid.
    """

    tree: np.ndarray
    step: np.ndarray
    fresh: np.ndarray
    episode: np.ndarray
    backbone: np.ndarray
    last_step: np.ndarray
    start: np.ndarray
    point_tree: np.ndarray
    point_step: np.ndarray
    rejected: int
    returns: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """Siblings of every point [P]."""
        return np.bincount(self.start[self.start >= 0], minlength=len(self.point_tree)) + 1

    @cached_property
    def ranks(self) -> np.ndarray:
        """Points before each one in its tree [P]."""
        return np.arange(len(self.point_tree)) - np.searchsorted(self.point_tree, self.point_tree)

    @cached_property
    def played(self) -> np.ndarray:
        """Trees whose backbone has an episode."""
        return np.flatnonzero(self.backbone >= 0)

    @cached_property
    def trained(self) -> np.ndarray:
        """Rows of backbones with an episode, and of fresh lines from complete points: bool [rows]."""
        alive = self.episode >= 0
        return np.where(self.fresh, alive & (self.start[self.episode] >= 0), alive)

    def later_point(self, after: int = 0) -> np.ndarray:
        """First point of each row's tree that is at least `after` steps later [rows], -1 where there is none."""
        return self._in_tree(np.searchsorted(self._point_codes, self._codes(self.tree, self.step + after)))

    def earlier_point(self) -> np.ndarray:
        """Last point of each row's tree that is not later than the row [rows], -1 where there is none."""
        return self._in_tree(np.searchsorted(self._point_codes, self._codes(self.tree, self.step), side="right") - 1)

    def compare(self, points: np.ndarray, backbone_values: np.ndarray) -> Compared:
        """Leave-one-out among the siblings of some points [p], from the values [p] of backbones and fresh returns."""
        place = np.full(len(self.point_tree), -1)
        place[points] = np.arange(len(points))
        fresh = np.flatnonzero(self.start >= 0)
        fresh = fresh[place[self.start[fresh]] >= 0]
        groups = np.concatenate([np.arange(len(points)), place[self.start[fresh]]])
        values = np.concatenate([backbone_values, self.returns[fresh]])
        statistics = group_statistics(values, groups, np.ones(len(values), dtype=bool))
        lead = leave_one_out_leads(values, groups)
        count = len(points)
        return Compared(points, lead[:count], statistics.mean, statistics.std > 0.0, fresh, lead[count:])

    def discounted_sums(self, values: np.ndarray, lam: float) -> np.ndarray:
        """Of every point [P] the sum of its value and of those of later points of its tree, by lam per step between."""
        sums = values.astype(np.float64)
        for rank in range(int(self.ranks.max(initial=0)), 0, -1):
            later = np.flatnonzero(self.ranks == rank)
            gap = self.point_step[later] - self.point_step[later - 1]
            sums[later - 1] += lam**gap * sums[later]
        return sums

    def diagnostics(self, backbone_lead: np.ndarray, informative: np.ndarray) -> dict[str, float]:
        """Complete and rejected points, the share of points whose siblings differ, the mean lead of the backbones.

        That mean is zero within noise where restored states are faithful and points are chosen before they are played.
        """
        return {
            "branch_groups": float(len(self.point_tree)),
            "rejected_groups": float(self.rejected),
            "informative_groups": float(informative.mean()) if len(informative) else 0.0,
            "backbone_advantage_mean": float(backbone_lead.mean()) if len(backbone_lead) else 0.0,
        }

    @cached_property
    def _point_codes(self) -> np.ndarray:
        return self._codes(self.point_tree, self.point_step)

    def _codes(self, tree: np.ndarray, step: np.ndarray) -> np.ndarray:
        return np.asarray(tree * (self.step.max(initial=0) + 2) + step)

    def _in_tree(self, point: np.ndarray) -> np.ndarray:
        inside = (point >= 0) & (point < len(self.point_tree))
        inside[inside] = self.point_tree[point[inside]] == self.tree[inside]
        return np.where(inside, point, -1)


def leave_one_out_leads(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Value minus the mean of the others of its group [n]; 0 for one that is alone."""
    numbers = np.unique(groups, return_inverse=True)[1]
    count = np.bincount(numbers)
    centred = group_advantage(values, numbers, np.ones(len(values), dtype=bool), singleton="zero")
    return np.asarray(centred * (count / np.maximum(count - 1, 1))[numbers])


def sibling_groups(batch: Batch) -> SiblingGroups:
    """Find the branch points of a batch.

    Raises AgentRLError for two episodes on one line, for a line that starts at a turn that is not of the backbone, and
    for more siblings than planned.
    """
    rows, step = batch.rows, batch.rollouts["step"].to_numpy()
    tree = codes(batch.rollouts["group_id"], batch.rollouts["tree_id"])
    fresh = batch.rollouts["branch"].to_numpy() != 0
    line = codes(pd.Series(tree), batch.rollouts["branch"])
    _require_backbones(batch, tree, fresh, line)
    leaf = _leaves(batch)
    owner = _owners(batch, line, leaf)
    backbone = np.full(int(tree.max(initial=-1)) + 1, -1)
    backbone[tree[leaf[~fresh[leaf]]]] = np.flatnonzero(~fresh[leaf])
    # The state before a row, named by the turn that led there, or at a root by the tree.
    state = np.where(rows.parent_row < 0, tree, len(backbone) + rows.parent_row)
    origin = np.full(len(owner), -1)
    begins = fresh & ((rows.parent_row < 0) | ~fresh[rows.parent_row])
    origin[line[begins]] = state[begins]
    origin = np.where(fresh[leaf], origin[line[leaf]], -1)
    states = len(backbone) + len(tree)
    complete, rejected = _points(batch, state, origin, owner[line] >= 0, states)
    row_at = np.full(states, -1)
    row_at[state[~fresh]] = np.flatnonzero(~fresh)
    complete = complete[np.lexsort((step[row_at[complete]], tree[row_at[complete]]))]
    point = np.full(states, -1)
    point[complete] = np.arange(len(complete))
    return SiblingGroups(
        tree=tree,
        step=step,
        fresh=fresh,
        episode=owner[line],
        backbone=backbone,
        last_step=step[leaf],
        start=np.where(origin < 0, -1, point[origin]),
        point_tree=tree[row_at[complete]],
        point_step=step[row_at[complete]],
        rejected=rejected,
        returns=batch.reward.scale * batch.returns + np.bincount(rows.episode, batch.local_scores, len(leaf)),
    )


def _points(
    batch: Batch, state: np.ndarray, origin: np.ndarray, alive: np.ndarray, states: int
) -> tuple[np.ndarray, int]:
    """States of complete points, and the number of rejected ones.

    state [rows]: before each row; alive [rows]: its line has an episode; origin [E]: state that a fresh line starts at,
    or -1.
    """
    of_backbone = batch.rollouts["branch"].to_numpy() == 0
    fresh = np.bincount(origin[origin >= 0], minlength=states)
    found = fresh + (np.bincount(state[of_backbone & alive], minlength=states) > 0)
    planned = np.zeros(states, dtype=np.int64)
    if SIBLINGS in batch.rollouts:
        np.maximum.at(planned, state, batch.rollouts[SIBLINGS].to_numpy())
    else:
        planned[fresh > 0] = found[fresh > 0]
    told = np.bincount(state[of_backbone], minlength=states) > 0
    surplus = np.flatnonzero(told & (fresh > 0) & (found > planned))
    if len(surplus):
        turn = batch.rollouts["turn_id"].iloc[int(np.flatnonzero(of_backbone & (state == surplus[0]))[0])]
        raise AgentRLError(
            f"rollouts: {SIBLINGS} of turn {turn!r} is {planned[surplus[0]]}, but {found[surplus[0]]} siblings are in "
            "the file, that turn included"
        )
    complete = (fresh > 0) & (found == fresh + 1) & (found == planned)
    return np.flatnonzero(complete), int((((fresh > 0) | (planned > 1)) & ~complete).sum())


def _leaves(batch: Batch) -> np.ndarray:
    """Leaf row of every episode [E]."""
    ends = (batch.rows.level == 0) & batch.rows.lead
    leaf = np.empty(len(batch.episodes), dtype=np.int64)
    leaf[batch.rows.episode[ends]] = batch.rows.row[ends]
    return leaf


def _owners(batch: Batch, line: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Episode that each line [L] ends in, -1 without one; raises AgentRLError where there are two."""
    owner = np.full(int(line.max(initial=-1)) + 1, -1)
    owner[line[leaf]] = np.arange(len(leaf))
    lost = np.flatnonzero(owner[line[leaf]] != np.arange(len(leaf)))
    if len(lost):
        name = batch.episodes["episode_id"].iloc[int(lost[0])]
        raise AgentRLError(f"episode {name!r} shares tree_id and branch with another: number the branches of a tree")
    return owner


def _require_backbones(batch: Batch, tree: np.ndarray, fresh: np.ndarray, line: np.ndarray) -> None:
    """Raise AgentRLError for a turn that follows one of another tree, or of another line that is no backbone."""
    parent = batch.rows.parent_row
    wrong = (parent >= 0) & (line[parent] != line) & ((tree[parent] != tree) | fresh[parent] | ~fresh)
    if wrong.any():
        turn = batch.rollouts["turn_id"].iloc[int(np.flatnonzero(wrong)[0])]
        raise AgentRLError(
            f"rollouts: turn {turn!r} goes on from a fresh continuation or from another tree; this estimator compares "
            "siblings on a backbone (branch 0)"
        )
