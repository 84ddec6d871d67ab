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
from agentbench_rl.envs.base import Environment, Suite
from agentbench_rl.envs.contract import expert_actions, playable
from agentbench_rl.types import AgentRLError, Task

Result = TypeVar("Result")
#: How far into an episode a fork is compared with a replay.
REPLAYED_STEPS = 20
#: As many as have a moment in common; they are timed together.
FORKS = 4
CALLS = ("reset", "step", "snapshot", "restore", "fork", "digest", "state_key", "admissible")


@dataclass(frozen=True, slots=True)
class Branching:
    """Mean over tasks of the median seconds to go on from within an episode.

    fork_seconds: to fork after `steps` steps and play one more; replay_seconds: to reset, and play all of them.
    """

    fork_seconds: float
    replay_seconds: float
    steps: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Median seconds per call, by call; the other numbers of a run.

    first_step_seconds: mean of the first visits, with nothing memoised; all other times are of later ones.
    steps_per_second counts whole episodes, resets included. branching: None where every first action ends an episode.
    snapshot_bytes: pickled, at most. memory_bytes: that the
    process grew by while the tasks were opened and played. open_seconds: to open `tasks` tasks.
    """

    seconds: dict[str, float]
    first_step_seconds: float
    steps_per_second: float
    branching: Branching | None
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
    branching = measure_branching(suite, tasks, repeats)
    fresh, first = open_source(environment, counts), {call: list[float]() for call in CALLS}
    for task, actions in played:
        _time_calls(fresh, task, actions, first)
    return Speed(
        seconds={call: statistics.median(values) for call, values in times.items()},
        first_step_seconds=statistics.mean(first["step"]),
        steps_per_second=statistics.median(_steps_per_second(suite, played) for _ in range(repeats)),
        branching=branching,
        snapshot_bytes=snapshot,
        memory_bytes=memory,
        open_seconds=open_seconds,
        tasks=sum(len(suite.tasks(name)) for name in suite.splits()),
    )


def measure_branching(suite: Suite, tasks: Sequence[Task], repeats: int) -> Branching | None:
    """Fork after REPLAYED_STEPS steps, or as many as the longest of these episodes can have, and replay the same."""
    wanders = {task: _wander(suite, task, REPLAYED_STEPS + 1) for task in tasks}
    most = max(map(len, wanders.values()))
    if most < 2:
        return None
    times = [_branch(suite, task, actions, repeats) for task, actions in wanders.items() if len(actions) == most]
    forks, replays = zip(*times, strict=True)
    return Branching(statistics.mean(forks), statistics.mean(replays), most - 1)


def _branch(suite: Suite, task: Task, actions: Sequence[str], repeats: int) -> tuple[float, float]:
    """Median seconds to fork before the last action and play it, and to play all of them from the start."""
    episode = suite.make()
    forks, replays = list[float](), list[float]()
    for _ in range(repeats):
        _timed(replays, _replay, episode, task, actions)
        _replay(episode, task, actions[:-1])
        _timed(forks, _fork, episode, actions[-1])
    episode.close()
    return statistics.median(forks) / FORKS, statistics.median(replays)


def _fork(episode: Environment, action: str) -> None:
    for _ in range(FORKS):
        fork = episode.fork()
        fork.step(action)
        fork.close()


def _replay(episode: Environment, task: Task, actions: Sequence[str]) -> None:
    episode.reset(task)
    for action in actions:
        episode.step(action)


def _wander(suite: Suite, task: Task, count: int) -> list[str]:
    """At most so many actions after which the episode goes on."""
    episode = suite.make()
    episode.reset(task)
    actions: list[str] = []
    for number in range(count):
        possible = episode.admissible() or ["look"]
        shift = 7 * number % len(possible)
        for action in (*possible[shift:], *possible[:shift]):
            fork = episode.fork()
            done = fork.step(action).done
            fork.close()
            if not done:
                break
        else:
            break
        episode.step(action)
        actions.append(action)
    episode.close()
    return actions


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
