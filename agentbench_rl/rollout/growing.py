"""Tree-GRPO: `rounds` times, `expansions` nodes of every tree are drawn at random and continued to the end.

A node is the root or a turn with the environment's answer to it. Expanding it samples on from the state after it: the
next turn and all that follow. So the nodes that can be expanded are the states before the turns of the tree's branches;
one that several branches share counts once, and neither an end nor what no snapshot can be taken of is one. They are
drawn uniformly and with replacement.
Leaves of a tree: 1 + rounds * expansions. The public code draws a part of them to train on; here all are.
Source: Tree-GRPO (arXiv 2509.21240, section 3.2, and its public code).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from agentbench_rl.config.topology import Grow
from agentbench_rl.rollout.chains import Player, Rollouts
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, RunningEpisode
from agentbench_rl.rollout.forks import order_by_tree, shifted, tree_metrics
from agentbench_rl.types import Progress


def grow(roots: Sequence[EpisodeSpec], play: Player, settings: Grow, progress: Progress) -> Rollouts:
    """Play forkable backbones and grow a tree on each; one that has no node to expand stays alone.

    The draws depend on tree_id and round alone. Everything is released at the end, also at an error.
    """
    total = len(roots) * (1 + settings.rounds * settings.expansions)
    rollouts = Rollouts()
    try:
        rollouts.add(play(roots, shifted(progress, 0, total)))
        played = len(roots)
        for number in range(settings.rounds):
            specs = [spec for root in roots for spec in _expansions(root, rollouts, settings, number)]
            rollouts.add(play(specs, shifted(progress, played, total)))
            played += len(specs)
    finally:
        rollouts.release()
    order_by_tree(rollouts, roots)
    rollouts.metrics |= tree_metrics(rollouts)
    return rollouts


def _expansions(root: EpisodeSpec, rollouts: Rollouts, settings: Grow, number: int) -> list[EpisodeSpec]:
    """The continuations of a tree in a round; those of the last one are not continued themselves."""
    tree = [episode for episode in rollouts.forkable.values() if episode.spec.tree_id == root.tree_id]
    nodes = _nodes(tree)
    if not nodes:
        return []
    drawn = random.Random(f"grow/{root.tree_id}/{number}").choices(nodes, k=settings.expansions)
    first = 1 + number * settings.expansions
    return [
        EpisodeSpec(
            root.task,
            root.group_id,
            root.tree_id,
            branch=branch,
            origin=node,
            forkable=number + 1 < settings.rounds,
        )
        for branch, node in enumerate(drawn, first)
    ]


def _nodes(tree: Iterable[RunningEpisode]) -> list[Boundary]:
    """The states before the turns of all branches; where a continuation began is a node of another branch."""
    nodes: list[Boundary] = []
    for episode in tree:
        first = 0 if episode.spec.origin is None else episode.spec.origin.step + 1
        nodes += [boundary for boundary in episode.boundaries if first <= boundary.step < episode.step]
    return nodes
