"""Dynamic sampling (DAPO, arXiv 2503.14476): groups whose returns are all equal teach nothing and are played anew.

Rounds of groups are played until `target` informative groups are kept. Returns are the raw ones of the environment,
before any penalty. What was discarded is counted and paid for, but stands in no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agentbench_rl.algorithms.informative import informative_groups
from agentbench_rl.config.topology import ResampleConfig
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec, Row
from agentbench_rl.types import GREEDY, AgentRLError


@dataclass(frozen=True)
class Resampled:
    """Rollouts of the kept groups, in the order of play, and what it took: rounds, groups played, informative ones."""

    rollouts: Rollouts
    rounds: int
    groups: int
    informative: int


def resample(
    rounds: Iterable[Sequence[EpisodeSpec]],
    play: Callable[[Sequence[EpisodeSpec]], Rollouts],
    target: int,
    settings: ResampleConfig,
) -> Resampled:
    """Play rounds until `target` informative groups are kept, at most `settings.max_tries`.

    `exhausted: keep` keeps the last possible round whole, as verl-agent does. `trim` keeps the first `target` groups.
    Raises AgentRLError when `exhausted: raise` and too few groups are informative.
    """
    rollouts = Rollouts()
    kept: list[str] = []
    groups = informative = number = 0
    for number, specs in enumerate(rounds, 1):
        played = play(specs)
        names = list(dict.fromkeys(spec.group_id for spec in specs))
        useful = _informative(played.episodes)
        groups += len(names)
        informative += len(useful)
        last = number == settings.max_tries
        chosen = [name for name in names if name in useful or (last and settings.exhausted == "keep")]
        played.keep(set(chosen))
        rollouts.add(played)
        kept += chosen
        if last or len(kept) >= target:
            break
    if len(kept) < target:
        raise AgentRLError(
            f"dynamic sampling: {len(kept)} of {target} groups are informative after {number} rounds; in the others "
            "all returns are equal. Raise topology.resample.max_tries or topology.group_size, lower "
            "rollout.tasks_per_iteration, or set topology.resample.exhausted: keep"
        )
    if settings.trim:
        rollouts.keep(set(kept[:target]))
    return Resampled(rollouts, number, groups, informative)


def _informative(episodes: Sequence[Row]) -> set[str]:
    """Groups whose sampled episodes without an infrastructure fault differ in their return."""
    counted = [row for row in episodes if row["return"] is not None and not row.get(GREEDY)]
    names = list(dict.fromkeys(row["group_id"] for row in counted))
    codes = {name: code for code, name in enumerate(names)}
    returns = np.array([row["return"] for row in counted], dtype=np.float64)
    useful = informative_groups(returns, np.array([codes[row["group_id"]] for row in counted], dtype=np.int64))
    return {name for name, differs in zip(names, useful, strict=True) if differs}
