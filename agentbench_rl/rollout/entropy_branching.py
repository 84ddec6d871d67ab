"""ARPO: a chain is forked before a turn with probability clip(base + weight * (H - H_first), 0, 1).

H: sum of the entropies of the turn's first `tokens` tokens over ln |V|; H_first: that of the chain's first turn, which
its forks share. Decisions are taken in the order of time: at step 1, 2, ... for every chain with a turn there, in the
order of their beginnings, until a task has its `leaves`. Each of `beam` - 1 copies has a draw of its own. A chain is
played to its end when it begins; what it did later changes no decision.
The public code estimates the entropy of a token from its ten likeliest ones and measures it in the segment before the
fork; here it is the whole distribution's, in the turn that a fork samples anew, as the paper describes it.
Source: ARPO (arXiv 2507.19849, section 3.1, and its public code).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby

import numpy as np

from agentbench_rl.algorithms.branching import branch_probability
from agentbench_rl.config.topology import EntropyBranch
from agentbench_rl.rollout.chains import Player, Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec, RunningEpisode
from agentbench_rl.rollout.forks import order_by_tree, shifted, tree_metrics
from agentbench_rl.types import Progress


@dataclass
class _Decisions:
    """What is known when a step is decided on: leaves per task and branches per tree that were begun so far."""

    settings: EntropyBranch
    vocabulary: int
    leaves: Counter[str] = field(default_factory=Counter)
    branches: Counter[str] = field(default_factory=Counter)

    def entropy(self, episode: RunningEpisode, turn: int) -> float:
        """H of one of an episode's own turns."""
        return sum(episode.entropies[turn][: self.settings.tokens]) / math.log(self.vocabulary)

    def missing(self, group: str) -> int:
        """Leaves that a task still lacks."""
        return self.settings.leaves - self.leaves[group]

    def forks(self, episode: RunningEpisode, step: int, first: float) -> list[EpisodeSpec]:
        """The forks of an episode before its turn at `step`, counted as begun.

        There are none before its own first turn, which is a fork itself, and none where no snapshot could be taken.
        """
        spec = episode.spec
        turn = step - (episode.step - len(episode.rows))
        origin = next((boundary for boundary in episode.boundaries if boundary.step == step), None)
        if turn < 1 or origin is None:
            return []
        change = np.array([self.entropy(episode, turn) - first])
        probability = branch_probability(change, self.settings.base, self.settings.weight)[0]
        draw = random.Random(f"entropy_branch/{spec.episode_id}/{step}")
        copies = sum(draw.random() < probability for _ in range(self.settings.beam - 1))
        forks = []
        for _ in range(min(copies, self.missing(spec.group_id))):
            self.leaves[spec.group_id] += 1
            self.branches[spec.tree_id] += 1
            branch = self.branches[spec.tree_id]
            forks.append(replace(spec, branch=branch, origin=origin))
        return forks


def branch_by_entropy(
    chains: Sequence[EpisodeSpec], play: Player, settings: EntropyBranch, vocabulary: int, progress: Progress
) -> Rollouts:
    """Begin the first `initial` of each task's `leaves` chains, fork them, and fill up with the next ones.

    The chains of a task stand together. vocabulary: |V|. The draws depend on episode_id and step alone. Everything is
    released at the end, also at an error.
    """
    groups = {name: list(group) for name, group in groupby(chains, key=lambda spec: spec.group_id)}
    decisions = _Decisions(settings, vocabulary, Counter(dict.fromkeys(groups, settings.initial)))
    begun = [spec for group in groups.values() for spec in group[: settings.initial]]
    rollouts = Rollouts()
    played = 0

    def play_next(specs: Sequence[EpisodeSpec]) -> None:
        nonlocal played
        rollouts.add(play(specs, shifted(progress, played, len(chains))))
        played += len(specs)

    try:
        play_next([replace(spec, forkable=settings.initial < settings.leaves) for spec in begun])
        first = {
            episode.spec.tree_id: decisions.entropy(episode, 0)
            for episode in rollouts.forkable.values()
            if episode.rows
        }
        for step in count(1):
            episodes = [episode for episode in rollouts.forkable.values() if episode.step > step]
            if not episodes:
                break
            forks = [
                fork for episode in episodes for fork in decisions.forks(episode, step, first[episode.spec.tree_id])
            ]
            if forks:
                play_next(forks)
        fresh = [
            spec
            for name, group in groups.items()
            for spec in group[settings.initial : settings.initial + decisions.missing(name)]
        ]
        if fresh:
            play_next(fresh)
    finally:
        rollouts.release()
    order_by_tree(rollouts, chains)
    rollouts.metrics |= tree_metrics(rollouts)
    return rollouts
