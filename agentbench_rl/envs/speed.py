"""How long an environment's calls take, along the expert's actions."""

from __future__ import annotations

import os
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.envs import open_source
from agentbench_rl.envs.base import Suite
from agentbench_rl.envs.contract import expert_actions, playable
from agentbench_rl.types import AgentRLError, Task

Result = TypeVar("Result")
CALLS = ("reset", "step", "snapshot", "restore", "fork", "digest", "state_key", "admissible")


@dataclass(frozen=True, slots=True)
class Speed:
    """Median seconds per call, by call; the other numbers of a run.

    first_step_seconds: mean of the first visits, with nothing memoised; all other times are of later ones.
    steps_per_second counts whole episodes, resets included. snapshot_bytes: pickled, at most. memory_bytes: that the
    process grew by while the tasks were opened and played. open_seconds: to open `tasks` tasks.
    """

    seconds: dict[str, float]
    first_step_seconds: float
    steps_per_second: float
    snapshot_bytes: int
    memory_bytes: int
    open_seconds: float
    tasks: int


def measure(environment: EnvironmentConfig, games: int, repeats: int) -> Speed:
    """Play `games` tasks of the first split `repeats` times by the expert's actions, on one core."""
    with _one_core():
        return _measure(environment, games, repeats)


def _measure(environment: EnvironmentConfig, games: int, repeats: int) -> Speed:
    before = _resident()
    begin = time.perf_counter()
    split = environment.splits[0]
    counts = {split: games}
    suite = open_source(environment, counts)
    open_seconds = time.perf_counter() - begin
    tasks = suite.tasks(split)[:games]
    if not tasks:
        raise AgentRLError(f"split {split} has no tasks to play")
    played = [(task, expert_actions(environment, suite, task)[0] or playable(suite, task)) for task in tasks]
    times: dict[str, list[float]] = {call: [] for call in CALLS}
    snapshot = max(_time_calls(suite, task, actions, times) for _ in range(repeats) for task, actions in played)
    memory = _resident() - before
    fresh, first = open_source(environment, counts), {call: list[float]() for call in CALLS}
    for task, actions in played:
        _time_calls(fresh, task, actions, first)
    return Speed(
        seconds={call: statistics.median(values) for call, values in times.items()},
        first_step_seconds=statistics.mean(first["step"]),
        steps_per_second=statistics.median(_steps_per_second(suite, played) for _ in range(repeats)),
        snapshot_bytes=snapshot,
        memory_bytes=memory,
        open_seconds=open_seconds,
        tasks=sum(len(suite.tasks(name)) for name in suite.splits()),
    )


def _time_calls(suite: Suite, task: Task, actions: Sequence[str], times: dict[str, list[float]]) -> int:
    """Add the seconds of every call on the way to `times`; returns the bytes of the largest snapshot."""
    episode, other = suite.make(), suite.make()
    _timed(times["reset"], episode.reset, task)
    largest = 0
    for action in actions:
        snapshot = _timed(times["snapshot"], episode.snapshot)
        largest = max(largest, len(pickle.dumps(snapshot)))
        _timed(times["restore"], other.restore, snapshot)
        _timed(times["fork"], episode.fork).close()
        done = _timed(times["step"], episode.step, action).done
        _timed(times["digest"], episode.digest)
        _timed(times["state_key"], episode.state_key)
        _timed(times["admissible"], episode.admissible)
        if done:
            break
    episode.close()
    other.close()
    return largest


def _timed(times: list[float], call: Callable[..., Result], *arguments: object) -> Result:
    begin = time.perf_counter()
    result = call(*arguments)
    times.append(time.perf_counter() - begin)
    return result


def _steps_per_second(suite: Suite, played: Sequence[tuple[Task, Sequence[str]]]) -> float:
    episode = suite.make()
    steps = 0
    begin = time.perf_counter()
    for task, actions in played:
        episode.reset(task)
        for action in actions:
            steps += 1
            if episode.step(action).done:
                break
    seconds = time.perf_counter() - begin
    episode.close()
    return steps / seconds


@contextmanager
def _one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return 0
    return int(status.read_text().split()[1]) * 4096
