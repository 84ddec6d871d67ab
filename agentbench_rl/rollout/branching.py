"""The `branch` topology: a backbone is played to its end, then fresh continuations from chosen boundaries of it.

A branch point compares K siblings: the backbone's own turn and K - 1 fresh ones, so that a tree of M points has
1 + M (K - 1) terminal returns. For `select: every` the backbone is no member of the estimate, and K fresh ones are
played at every boundary. Sources: BPO (arXiv 2607.14171), VinePPO (arXiv 2410.01679).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from agentbench_rl.algorithms.branch_points import branch_points
from agentbench_rl.config.topology import Branch
from agentbench_rl.rollout.chains import Player, Rollouts
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, Row, RunningEpisode
from agentbench_rl.rollout.forks import order_by_tree, shifted
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS, SIBLINGS, Progress


@dataclass(frozen=True)
class _Point:
    """A branch point: the backbone's turn there, the backbone's length, and the fresh continuations."""

    turn: Row
    length: int
    fresh: tuple[EpisodeSpec, ...]


def branch(
    roots: Sequence[EpisodeSpec], play: Player, settings: Branch, threshold: float, progress: Progress
) -> Rollouts:
    """Play the trees of `roots`; a tree's rows stand together, its backbone first, then the others by their number.

    threshold: nats, for `online_threshold`. A backbone that ended in an infrastructure fault is not branched, and a
    boundary without a snapshot is no branch point. No environment stays open. `progress` is told a total that grows
    when the backbones are done.
    """
    rollouts = play(roots, progress)
    try:
        lost = sum(map(_without_snapshot, rollouts.forkable.values()))
        points = [point for root in roots for point in _points(rollouts.forkable[root.episode_id], settings, threshold)]
        specs = [spec for point in points for spec in point.fresh]
        # What was not chosen goes now; the chosen boundaries are held by their continuations.
        rollouts.release()
        told = shifted(progress, len(roots), len(roots) + len(specs))
        fresh = play(specs, told) if specs else Rollouts()
    finally:
        rollouts.release()
    rollouts.add(fresh)
    _mark(rollouts.turns, points)
    order_by_tree(rollouts, roots)
    rollouts.metrics |= _metrics(rollouts, points, roots) | {"boundaries_without_snapshot": float(lost)}
    if settings.select == "online_threshold":
        rollouts.metrics["branch_threshold"] = threshold
    return rollouts


def _points(backbone: RunningEpisode, settings: Branch, threshold: float) -> Iterator[_Point]:
    if backbone.ending in INFRASTRUCTURE_ENDINGS:
        return
    turns = backbone.rows
    boundaries = {boundary.step: boundary for boundary in backbone.boundaries}
    lengths = np.array([len(turn["response_ids"]) for turn in turns], dtype=np.int64)
    steps = branch_points(
        entropy=np.array([_nats(turn) for turn in turns], dtype=np.float64),
        position=np.cumsum(lengths) - lengths,
        eligible=np.array([step in boundaries for step in range(len(turns))], dtype=bool),
        settings=settings,
        threshold=threshold,
        tree_id=backbone.spec.tree_id,
    )
    count = settings.siblings - (settings.select != "every")
    for number, step in enumerate(steps):
        fresh = _continuations(backbone.spec, boundaries[step], first=1 + number * count, count=count)
        yield _Point(turns[step], len(turns), fresh)


def _without_snapshot(backbone: RunningEpisode) -> int:
    """Turns before which no snapshot could be taken."""
    return len(backbone.rows) - sum(boundary.step < len(backbone.rows) for boundary in backbone.boundaries)


def _continuations(root: EpisodeSpec, origin: Boundary, first: int, count: int) -> tuple[EpisodeSpec, ...]:
    branches = range(first, first + count)
    return tuple(EpisodeSpec(root.task, root.group_id, root.tree_id, branch=k, origin=origin) for k in branches)


def _mark(turns: Sequence[Row], points: Sequence[_Point]) -> None:
    """Write how many siblings were planned on the backbone's row of every branch point, and 0 on all other rows."""
    planned = {point.turn["turn_id"]: 1 + len(point.fresh) for point in points}
    for turn in turns:
        turn[SIBLINGS] = planned.get(turn["turn_id"], 0)


def _metrics(rollouts: Rollouts, points: Sequence[_Point], roots: Sequence[EpisodeSpec]) -> dict[str, float]:
    """Shape of the trees; where there is no branch point, nothing is said of them."""
    returned = {row["episode_id"] for row in rollouts.episodes if row["return"] is not None}
    backbones = returned & {root.episode_id for root in roots}
    success = [row["success"] for row in rollouts.episodes if row["episode_id"] in backbones]
    whole = [point for point in points if returned.issuperset(spec.episode_id for spec in point.fresh)]
    metrics = {
        "branch_points": len(points) / len(roots),
        "returns_per_task": len(returned) / len({root.group_id for root in roots}),
        "incomplete_groups": float(len(points) - len(whole)),
    }
    known = [entropy for point in points if not math.isnan(entropy := _nats(point.turn))]
    actions = {row["turn_id"]: row["action"] for row in rollouts.turns}
    means = {
        "backbone_success": success,
        "branch_depth": [point.turn["step"] / point.length for point in points],
        "branch_entropy": known,
        "distinct_branch_actions": [_distinct(point, actions) for point in whole],
    }
    return metrics | {name: fmean(values) for name, values in means.items() if values}


def _distinct(point: _Point, actions: dict[str, str]) -> float:
    """Share of distinct actions among a branch point's siblings."""
    step = point.turn["step"]
    taken = [point.turn["action"], *(actions[f"{spec.episode_id}.{step}"] for spec in point.fresh)]
    return len(set(taken)) / len(taken)


def _nats(turn: Row) -> float:
    return math.nan if turn["boundary_entropy"] is None else float(turn["boundary_entropy"])
