"""The continuous scheduler: every episode goes on as soon as its own environment answered, without a barrier.

Requests of all episodes are in the engine together, and new ones join while others are sampled. An episode's own work
(prompts, decoding, its environment) is done by workers beside the engine, so no slow environment keeps it waiting. Rows
are those of `chains.collect` wherever the sampler's responses depend on nothing but request and seed; what shares a
batch depends on timing, so log-probs are equal within rounding alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from agentbench_rl.envs.base import Environment
from agentbench_rl.policies.base import Completion, SamplingRequest, StreamingSampler
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.chains import Batch, Playing, Rollouts, begin, places_of
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings
from agentbench_rl.types import Progress


@dataclass
class Turn:
    """An episode after its own work: what it samples next, and the sessions that it does not go on with."""

    episode: Playing
    requests: list[SamplingRequest] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)


class Workers(Protocol):
    """Do the episodes' own work beside the engine."""

    def submit(self, work: Callable[[], Turn]) -> None:
        """Begin a piece of work."""

    def done(self, *, wait: bool) -> list[Turn]:
        """What is done by now, at least one where `wait` is set; raises what a piece of work raised."""


class Threads:
    """Workers that are threads: an environment in another process leaves the interpreter to the engine."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="episode")
        self._done = SimpleQueue[Future[Turn]]()

    def submit(self, work: Callable[[], Turn]) -> None:
        """Begin a piece of work in a free thread."""
        self._pool.submit(work).add_done_callback(self._done.put)

    def done(self, *, wait: bool) -> list[Turn]:
        """What is done by now, at least one where `wait` is set; raises what a piece of work raised."""
        futures = [self._done.get()] if wait else []
        with suppress(Empty):
            while True:
                futures.append(self._done.get_nowait())
        return [future.result() for future in futures]

    def close(self) -> None:
        """Take no more work; what hangs in an environment ends with that environment's process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def collect(
    specs: Sequence[EpisodeSpec],
    sampler: StreamingSampler,
    make_environment: Callable[[], Environment],
    codec: ChatCodec,
    settings: PlaySettings,
    *,
    slots: int,
    retries: int,
    max_fault_share: float,
    progress: Progress,
    earlier: Mapping[str, int] | None = None,
    workers: Workers | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Rollouts:
    """Play every episode once, as `chains.collect` does; `workers` and `clock` stand for threads and real time.

    `timings` has one row: all requests, seconds in the engine, and seconds in which it had nothing to sample.
    """
    batch, room = Batch(specs, retries), places_of(slots, settings)
    with ExitStack() as opened:
        if workers is None:
            workers = threads = Threads(room)
            opened.callback(threads.close)
        episodes = opened.enter_context(ExitStack())

        def start(spec: EpisodeSpec) -> Turn:
            environment = make_environment()
            episodes.callback(environment.close)
            return _next_turn(begin(spec, environment, codec, settings))

        _play(batch, sampler, workers, start, room, lambda: progress(len(batch.finished), len(specs)), clock)
        rollouts = batch.result(max_fault_share, earlier)
        episodes.pop_all()
    return rollouts


def _play(
    batch: Batch,
    sampler: StreamingSampler,
    workers: Workers,
    start: Callable[[EpisodeSpec], Turn],
    room: int,
    tell: Callable[[], None],
    clock: Callable[[], float],
) -> None:
    """Play all episodes of a batch, at most `room` at once."""
    sampling = _Sampling(sampler)
    live, begun, busy = 0, clock(), 0.0
    while batch.waiting or live:
        while batch.waiting and live < room:
            workers.submit(partial(start, batch.waiting.pop()))
            live += 1
        for turn in workers.done(wait=not sampling):
            for session in turn.idle:
                sampler.release(session)
            if turn.episode.over:
                batch.end(turn.episode)
                live -= 1
                tell()
            else:
                sampling.submit(turn)
        before = clock()
        for episode, completions in sampling.step():
            workers.submit(partial(_go_on, episode, completions))
        busy += clock() - before
    batch.rollouts.model_calls = sampling.requests
    timing = {"sample_seconds": busy, "environment_seconds": clock() - begun - busy}
    batch.rollouts.timings.append({"tick": 0, "requests": sampling.requests} | timing)


class _Sampling:
    """The episodes whose requests are in the engine; an event goes on when all of its responses are there."""

    def __init__(self, sampler: StreamingSampler) -> None:
        self._sampler = sampler
        self._owner: dict[str, tuple[Turn, dict[str, Completion]]] = {}
        self.requests = 0

    def __bool__(self) -> bool:
        return bool(self._owner)

    def submit(self, turn: Turn) -> None:
        done: dict[str, Completion] = {}
        for request in turn.requests:
            self._sampler.submit(request)
            self._owner[request.session] = turn, done
        self.requests += len(turn.requests)

    def step(self) -> list[tuple[Playing, list[Completion]]]:
        """Let the engine sample, if it has anything to; return the events that are complete."""
        complete = []
        for session, completion in self._sampler.step() if self._owner else ():
            turn, done = self._owner.pop(session)
            done[session] = completion
            if len(done) == len(turn.requests):
                complete.append((turn.episode, [done[request.session] for request in turn.requests]))
        return complete


def _next_turn(episode: Playing, idle: Sequence[str] = ()) -> Turn:
    """What an episode samples next; it may end where it looks for that."""
    requests = [] if episode.over else episode.requests()
    return Turn(episode, requests, [*idle, *(episode.idle_sessions() if episode.over else ())])


def _go_on(episode: Playing, completions: Sequence[Completion]) -> Turn:
    episode.advance(completions)
    return _next_turn(episode, [] if episode.over else episode.idle_sessions())
