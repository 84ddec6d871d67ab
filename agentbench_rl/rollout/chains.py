"""The `chains` topology: groups of independent episodes under the deterministic scheduler.

Virtual time: at every tick all episodes in play sample their next response as one batch; a finished episode leaves
the batch at once and the next of the queue takes its slot. Which requests share a batch is therefore a pure function
of the order of the episodes and of what was sampled, never of how long anything took.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from agentbench_rl.envs.base import Environment
from agentbench_rl.policies.base import Completion, Sampler, SamplingRequest
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings, Row, RunningEpisode
from agentbench_rl.rollout.team import TeamEpisode
from agentbench_rl.rollout.workflows import places
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS, AgentRLError, Ending, Progress

#: Plays episodes as one batch, and tells how many of them are done.
Player = Callable[[Sequence[EpisodeSpec], Progress], "Rollouts"]


class Playing(Protocol):
    """An episode in play: `requests` and `advance` alternate, with one completion per request, until it is `over`."""

    spec: EpisodeSpec
    rows: list[Row]
    ending: Ending | None

    @property
    def over(self) -> bool: ...

    def requests(self) -> list[SamplingRequest]:
        """What it samples next, all in one batch; nothing where it has just ended."""

    def advance(self, completions: Sequence[Completion]) -> None: ...

    def idle_sessions(self) -> list[str]:
        """Sessions of its last requests that it does not go on with."""

    def cost(self) -> dict[str, int]: ...

    def summary(self) -> Row: ...

    def close(self) -> None: ...


@dataclass
class Rollouts:
    """Rows of `rollouts.parquet` and `episodes.parquet`, ticks and their seconds, retries and endings counted.

    cost: environment steps, sampled tokens, prompt tokens and tool calls of all attempts, the discarded ones too.
    discarded: rows of episodes that were played and counted, but are not kept; `turns` and `episodes` lack them.
    forkable: episodes by id whose environments are kept open for their boundaries, until `release`. metrics: of the
    topology.
    """

    turns: list[Row] = field(default_factory=list)
    episodes: list[Row] = field(default_factory=list)
    timings: list[Row] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    cost: Counter[str] = field(default_factory=Counter)
    discarded: list[Row] = field(default_factory=list)
    forkable: dict[str, RunningEpisode] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    retried: int = 0
    model_calls: int = 0

    def add(self, other: Rollouts) -> None:
        """Append what was played after this; the ticks are numbered on."""
        self.turns += other.turns
        self.episodes += other.episodes
        self.timings += [tick | {"tick": len(self.timings) + index} for index, tick in enumerate(other.timings)]
        self.endings.update(other.endings)
        self.cost.update(other.cost)
        self.discarded += other.discarded
        self.forkable |= other.forkable
        self.metrics |= other.metrics
        self.retried += other.retried
        self.model_calls += other.model_calls

    def release(self) -> None:
        """Close the episodes that were kept for their boundaries, and forget these."""
        for episode in self.forkable.values():
            episode.close()
        self.forkable.clear()

    def keep(self, groups: Collection[str]) -> None:
        """Discard the episodes of all other groups."""
        self.turns = [turn for turn in self.turns if turn["group_id"] in groups]
        self.discarded += [episode for episode in self.episodes if episode["group_id"] not in groups]
        self.episodes = [episode for episode in self.episodes if episode["group_id"] in groups]


def collect(
    specs: Sequence[EpisodeSpec],
    sampler: Sampler,
    make_environment: Callable[[], Environment],
    codec: ChatCodec,
    settings: PlaySettings,
    *,
    slots: int,
    retries: int,
    max_fault_share: float,
    progress: Progress,
    earlier: Mapping[str, int] | None = None,
) -> Rollouts:
    """Play every episode once; rows stand in the order of `specs`, turns in the order of steps.

    An episode that is left before its end has turns, but no row of `episodes` and no ending. An episode that ends in an
    infrastructure fault is played again up to `retries` times.
    Raises AgentRLError, and leaves no environment open, when more than `max_fault_share` of the episodes end so for
    good; `earlier` counts the endings of those that were played before in the same stage.
    """
    batch = Batch(specs, retries)
    active = list[Playing]()
    room = places_of(slots, settings)
    with ExitStack() as opened:
        while batch.waiting or active:
            while batch.waiting and len(active) < room:
                active.append(begin(batch.waiting.pop(), make_environment(), codec, settings))
                opened.callback(active[-1].close)
            _tick(active, sampler, batch.rollouts)
            _release(active, sampler)
            for episode in [episode for episode in active if episode.over]:
                active.remove(episode)
                batch.end(episode)
            progress(len(batch.finished), len(specs))
        rollouts = batch.result(max_fault_share, earlier)
        opened.pop_all()
    return rollouts


class Batch:
    """The books of episodes that are played together: who waits, who is finished, and who is played again.

    waiting: the next one last. finished: by id of the episode.
    """

    def __init__(self, specs: Sequence[EpisodeSpec], retries: int) -> None:
        self.waiting = list(reversed(specs))
        self.finished: dict[str, Playing] = {}
        self.rollouts = Rollouts()
        self._specs, self._retries = specs, retries
        self._attempts = Counter[str]()

    def end(self, episode: Playing) -> None:
        """Take an episode that is over: it is finished, or waits again after a fault; close what is not forked."""
        self.rollouts.cost.update(episode.cost())
        key = episode.spec.episode_id
        again = episode.ending in INFRASTRUCTURE_ENDINGS and self._attempts[key] < self._retries
        if again or not episode.spec.forkable:
            episode.close()
        if again:
            self._attempts[key] += 1
            self.rollouts.retried += 1
            self.waiting.append(episode.spec)
        else:
            self.finished[key] = episode

    def result(self, max_fault_share: float, earlier: Mapping[str, int] | None) -> Rollouts:
        """Everything that was played, in the order of the specs; AgentRLError where too much of it ended in faults."""
        _gather(self._specs, self.finished, self.rollouts)
        _check_faults(Counter(earlier) + ending_counts(self.rollouts, len(self._specs)), max_fault_share)
        return self.rollouts


def places_of(slots: int, settings: PlaySettings) -> int:
    """How many episodes are in play at once."""
    return slots if settings.workflow is None else places(slots, settings.workflow)


def begin(spec: EpisodeSpec, environment: Environment, codec: ChatCodec, settings: PlaySettings) -> Playing:
    """Start an episode, of one agent or of a team."""
    kind = RunningEpisode if settings.workflow is None else TeamEpisode
    return kind(spec, environment, codec, settings)


def _tick(active: Sequence[Playing], sampler: Sampler, rollouts: Rollouts) -> None:
    playing = [episode for episode in active if not episode.over]
    asked = [(episode, requests) for episode in playing if (requests := episode.requests())]
    if not asked:
        return
    started = time.perf_counter()
    batch = [request for _, requests in asked for request in requests]
    completions = sampler.generate(batch)
    sampled = time.perf_counter()
    answers = iter(completions)
    for episode, requests in asked:
        episode.advance(list(islice(answers, len(requests))))
    rollouts.model_calls += len(batch)
    rollouts.timings.append(
        {
            "tick": len(rollouts.timings),
            "requests": len(batch),
            "sample_seconds": sampled - started,
            "environment_seconds": time.perf_counter() - sampled,
        }
    )


def _release(active: Sequence[Playing], sampler: Sampler) -> None:
    for episode in active:
        for session in episode.idle_sessions():
            sampler.release(session)


def _gather(specs: Sequence[EpisodeSpec], finished: dict[str, Playing], rollouts: Rollouts) -> None:
    for spec in specs:
        episode = finished[spec.episode_id]
        rollouts.turns += episode.rows
        if spec.forkable and isinstance(episode, RunningEpisode):
            rollouts.forkable[spec.episode_id] = episode
        if episode.ending is not None:
            rollouts.episodes.append(episode.summary())
            rollouts.endings[str(episode.ending)] += 1


def ending_counts(rollouts: Rollouts, episodes: int) -> Counter[str]:
    """How many of so many episodes ended how; those that were left before their end count as `left`."""
    return rollouts.endings + Counter(left=episodes - rollouts.endings.total())


def _check_faults(endings: Counter[str], max_share: float) -> None:
    episodes = endings.total()
    faults = sum(endings[str(ending)] for ending in INFRASTRUCTURE_ENDINGS)
    if faults > max_share * episodes:
        raise AgentRLError(
            f"{faults} of {episodes} episodes ended in infrastructure faults ({dict(endings)}); "
            f"rollout.max_fault_share allows {max_share:.0%}. Check the environment with `agentrl env check`."
        )
