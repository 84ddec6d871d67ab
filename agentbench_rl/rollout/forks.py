"""What topologies of several batches share: progress, the order of rows, and the measured shape of the trees."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec, Row
from agentbench_rl.types import Progress


def shifted(progress: Progress, before: int, total: int) -> Progress:
    """Progress of a batch before which `before` episodes of `total` were played."""
    return lambda done, _: progress(before + done, total)


def order_by_tree(rollouts: Rollouts, roots: Sequence[EpisodeSpec]) -> None:
    """Let the rows of a tree stand together, in the order of `roots` and, within a tree, in that of play."""
    place = {root.tree_id: index for index, root in enumerate(roots)}
    rollouts.turns.sort(key=lambda row: place[row["tree_id"]])
    rollouts.episodes.sort(key=lambda row: place[row["tree_id"]])


def tree_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Returns per task, branch points per tree, and means over these: depth and boundary entropy (nats).

    depth: turns before the point over the length of the branch that led there. entropy: of the first turn that was
    sampled anew there. Where there is no branch point, nothing is said of them.
    """
    returned = [episode for episode in rollouts.episodes if episode["return"] is not None]
    owner: dict[str | None, tuple[str, int]] = {}
    length: dict[tuple[str, int], int] = {}
    points: dict[tuple[str, str | None], Row] = {}
    for turn in rollouts.turns:
        branch = turn["tree_id"], turn["branch"]
        if branch not in length and turn["branch"] > 0:
            points.setdefault((turn["tree_id"], turn["parent_id"]), turn)
        owner[turn["turn_id"]], length[branch] = branch, turn["step"] + 1
    depths = [turn["step"] / length[owner[parent]] if parent else 0.0 for (_, parent), turn in points.items()]
    entropies = [entropy for turn in points.values() if (entropy := turn["boundary_entropy"]) is not None]
    metrics = {
        "returns_per_task": len(returned) / len({episode["group_id"] for episode in rollouts.episodes}),
        "branch_points": len(points) / len({episode["tree_id"] for episode in rollouts.episodes}),
    }
    means = {"branch_depth": depths, "branch_entropy": entropies}
    return metrics | {name: fmean(values) for name, values in means.items() if values}
