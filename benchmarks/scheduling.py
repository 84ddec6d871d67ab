"""Barrier against continuous scheduling, with environments that take their time: how busy the sampler is, how fast.

Run: PYTHONPATH=. python benchmarks/scheduling.py [--live 64] [--repeats 5] [--out results/benchmarks/scheduling.json]

Nothing is timed: engine and environments advance a virtual clock. A step of the engine gives one token to every request
in it and takes a constant part and one per request; a turn has `TOKENS` of them. An environment's step takes log-normal
time (sigma 1) whose mean is a quarter of a turn's decode time with all places taken. Continuous is
`rollout.continuous` itself. With the barrier, all episodes sample together, all their environments step at the same
time, and the slowest is waited for. Both draw the same latencies.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import AlfworldEnvironment
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.rollout import continuous
from agentbench_rl.rollout.chains import begin
from agentbench_rl.rollout.continuous import Turn
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings, specs_of_groups
from agentbench_rl.types import Observation, StepResult, Task, silent

TOKENS = 64
#: Seconds of a step of the engine: for itself, and for every request in it.
STEP, REQUEST = 0.020, 0.0001
#: Mean latency of an environment's step, as a share of a turn's decode time; standard deviation of its logarithm.
SHARE, SIGMA = 0.25, 1.0
#: Episodes have between these numbers of turns.
TURNS = (4, 12)


class Clock:
    """Virtual time, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """Gives every request one token per step; remembers for how long it sampled, and how many requests at once."""

    entropies_are_lower_bounds = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, int] = {}
        self.busy = self.places = 0.0

    def submit(self, request: SamplingRequest) -> None:
        self._left[request.session] = TOKENS

    def step(self) -> list[tuple[str, Completion]]:
        seconds = STEP + REQUEST * len(self._left)
        self._clock.now += seconds
        self.busy += seconds
        self.places += seconds * len(self._left)
        done = [session for session, left in self._left.items() if left == 1]
        self._left = {session: left - 1 for session, left in self._left.items() if left > 1}
        return [(session, Completion([1], [0.0], [], True)) for session in done]

    def release(self, session: str) -> None:
        """Nothing is cached."""


class Desk:
    """Workers of which each has as much time as its environment takes: `latency` of one piece of work."""

    def __init__(self, clock: Clock, latency: Callable[[Turn], float]) -> None:
        self._clock, self._latency = clock, latency
        self._waiting: list[tuple[float, Turn]] = []

    def submit(self, work: Callable[[], Turn]) -> None:
        turn = work()
        self._waiting.append((self._clock.now + self._latency(turn), turn))

    def done(self, *, wait: bool) -> list[Turn]:
        if wait:
            self._clock.now = max(self._clock.now, min(due for due, _ in self._waiting))
        ready = sorted((pair for pair in self._waiting if pair[0] <= self._clock.now), key=lambda pair: pair[0])
        self._waiting = [pair for pair in self._waiting if pair[0] > self._clock.now]
        return [turn for _, turn in ready]


class Errand:
    """An episode of a number of turns that its task names."""

    def reset(self, task: Task) -> Observation:
        self._left = int(task.task_type)
        return Observation("begin")

    def step(self, action: str) -> StepResult:
        self._left -= 1
        return StepResult("go on", 1.0, self._left == 0, self._left == 0)

    def state_key(self) -> str:
        return str(self._left)

    def process_reward(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


class Silent:
    """A codec whose texts have one token."""

    def open(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [1]

    def follow(self, user_text: str, *, finished: bool) -> list[int]:
        return [1]

    def decode(self, ids: Sequence[int]) -> str:
        return "go"


SETTINGS = PlaySettings(AlfworldEnvironment(name="alfworld"), ModelConfig(), 16, 500, 1.0, "policy", 0)


def decode_seconds(live: int) -> float:
    """A turn's decode time with all places taken."""
    return TOKENS * (STEP + REQUEST * live)


def latencies(live: int, seed: int) -> Callable[[Turn], float]:
    """The latency of the step that led to a turn; it depends on the episode and its step alone."""
    mean = SHARE * decode_seconds(live)

    def latency(turn: Turn) -> float:
        draw = random.Random(f"{seed}/{turn.episode.spec.episode_id}/{len(turn.episode.rows)}")
        return draw.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)

    return latency


def episodes(count: int, seed: int) -> list[EpisodeSpec]:
    draw = random.Random(f"turns/{seed}")
    tasks = [Task(f"t{index}", str(draw.randint(*TURNS)), "train", "") for index in range(count)]
    return specs_of_groups(tasks, 1, "s0.i0")


def play_continuously(specs: Sequence[EpisodeSpec], live: int, seed: int) -> dict[str, float]:
    """Play with the scheduler of the package."""
    clock = Clock()
    engine, desk = Engine(clock), Desk(clock, latencies(live, seed))
    continuous.collect(
        specs,
        engine,  # type: ignore[arg-type]
        Errand,  # type: ignore[arg-type]
        Silent(),  # type: ignore[arg-type]
        SETTINGS,
        slots=live,
        retries=0,
        max_fault_share=0.0,
        progress=silent,
        workers=desk,
        clock=clock,
    )
    return measured(engine, clock, live, len(specs))


def play_with_barrier(specs: Sequence[EpisodeSpec], live: int, seed: int) -> dict[str, float]:
    """Play turn by turn: all sample, all environments step, and the slowest is waited for."""
    clock, latency = Clock(), latencies(live, seed)
    engine, waiting = Engine(clock), list(reversed(specs))
    playing: list[Any] = []
    while waiting or playing:
        begun = []
        while waiting and len(playing) + len(begun) < live:
            begun.append(begin(waiting.pop(), Errand(), Silent(), SETTINGS))  # type: ignore[arg-type]
        # Who begins resets while the others step: both are part of the same wait.
        turns = [Turn(episode) for episode in (*playing, *begun)]
        clock.now += max(map(latency, turns))
        playing = [episode for episode in (*playing, *begun) if not episode.over]
        for episode in playing:
            for request in episode.requests():
                engine.submit(request)
        answered = 0
        while answered < len(playing):
            answered += len(engine.step())
        for episode in playing:
            episode.advance([Completion([1], [0.0], [], True)])
    return measured(engine, clock, live, len(specs))


def measured(engine: Engine, clock: Clock, live: int, count: int) -> dict[str, float]:
    """Share of the time in which the engine samples, share of its places that are taken, episodes per second."""
    return {
        "busy": engine.busy / clock.now,
        "places": engine.places / (clock.now * live),
        "episodes_per_second": count / clock.now,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, default=64, help="episodes in play at once")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/scheduling.json"))
    given = parser.parse_args()
    runs = []
    for seed in range(given.repeats):
        specs = episodes(given.episodes, seed)
        runs.append(
            {
                "barrier": play_with_barrier(specs, given.live, seed),
                "continuous": play_continuously(specs, given.live, seed),
            }
        )
    names = ("busy", "places", "episodes_per_second")
    medians = {
        way: {name: statistics.median(run[way][name] for run in runs) for name in names}
        for way in ("barrier", "continuous")
    }
    speed = [run["continuous"]["episodes_per_second"] / run["barrier"]["episodes_per_second"] for run in runs]
    ratios = {"median": statistics.median(speed), "least": min(speed), "most": max(speed)}
    print(f"{given.live} live of {given.episodes} episodes, {given.repeats} repeats; medians, virtual time")
    for way, values in medians.items():
        print(
            f"{way:>10}: sampler busy {values['busy']:.1%}, places taken {values['places']:.1%}, "
            f"{values['episodes_per_second']:.2f} episodes/s"
        )
    print(f"continuous is {ratios['median']:.2f} times as fast ({ratios['least']:.2f} to {ratios['most']:.2f})")
    settings = {
        "live": given.live,
        "episodes": given.episodes,
        "repeats": given.repeats,
        "tokens": TOKENS,
        "step_seconds": STEP,
        "request_seconds": REQUEST,
        "latency_share": SHARE,
        "sigma": SIGMA,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"settings": settings, "medians": medians, "speed": ratios, "runs": runs}
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"Written to {given.out}.")


if __name__ == "__main__":
    main()
