"""Speed of the native ALFWorld engine on one core, and its ratio to TextWorld as shipped on the same games.

All times are CPU seconds of this process, both engines being single-threaded. Every repeat times both engines on the
same games and commands, and the ratio is taken within a repeat. Numbers are medians over the repeats, with the
smallest and the largest. Without the extra `alfworld`
the native engine is timed alone; without DATA, generated games are used.

    python benchmarks/throughput_env.py [DATA] [--split valid_seen] [--repeats 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentbench_rl.config.environment import GeneratorConfig
from agentbench_rl.envs.alfworld.gamefile import GameFile, load_games
from agentbench_rl.envs.alfworld.generator import generate_split
from agentbench_rl.envs.alfworld.suite import AlfworldSuite
from agentbench_rl.envs.alfworld.world import parse_world
from agentbench_rl.envs.base import Environment
from agentbench_rl.types import AgentRLError, Task

WALK = 200
REFERENCE_GAMES = 2
REFERENCE_WALK = 10
#: The native engine walks the reference's walks so many times: one walk is too short to be timed.
NATIVE_ROUNDS = 500
CALLS = 5000


def seconds(action: Callable[[], object], calls: int = 1) -> float:
    """CPU seconds per call."""
    begin = time.process_time()
    for _ in range(calls):
        action()
    return (time.process_time() - begin) / calls


def record_walks(suite: AlfworldSuite, tasks: Sequence[Task], steps: int, rng: random.Random) -> dict[str, list[str]]:
    """Random admissible commands per task, so that the choice costs nothing when they are timed."""
    walks: dict[str, list[str]] = {}
    environment = suite.make()
    for task in tasks:
        environment.reset(task)
        walk = walks[task.task_id] = []
        for _ in range(steps):
            walk.append(rng.choice(environment.admissible() or []))
            if environment.step(walk[-1]).done:
                break
    return walks


def steps_per_second(
    environment: Environment, tasks: Sequence[Task], walks: dict[str, list[str]], rounds: int = 1
) -> float:
    """Steps per second, each with its admissible commands; resets are not counted."""
    spent = 0.0
    for task in [*tasks] * rounds:
        environment.reset(task)
        begin = time.process_time()
        for command in walks[task.task_id]:
            environment.step(command)
            environment.admissible()
        spent += time.process_time() - begin
    return rounds * sum(len(walks[task.task_id]) for task in tasks) / spent


def report(name: str, unit: str, values: Sequence[float]) -> None:
    middle, low, high = statistics.median(values), min(values), max(values)
    print(f"{name:<42} {middle:>12,.2f} {unit:<9} (min {low:,.2f}, max {high:,.2f}, {len(values)} repeats)")


def time_native(suite: AlfworldSuite, games: Sequence[GameFile], repeats: int) -> None:
    tasks = suite.tasks(suite.splits()[0])
    walks = record_walks(suite, tasks, WALK, random.Random(0))
    environment = suite.make()
    speeds = [steps_per_second(environment, tasks, walks) for _ in range(repeats)]
    report("native: steps with admissible commands", "steps/s", speeds)
    snapshot = environment.snapshot()

    def restored_key() -> str:
        environment.restore(snapshot)
        return environment.state_key()

    for name, action in (
        ("reset", lambda: environment.reset(tasks[0])),
        ("snapshot", environment.snapshot),
        ("fork", environment.fork),
        ("restore", lambda: environment.restore(snapshot)),
        ("restore and state_key", restored_key),
    ):
        report(f"native: {name}", "us", [seconds(action, CALLS) * 1e6 for _ in range(repeats)])
    parsing = [seconds(lambda: [parse_world(game) for game in games]) / len(games) * 1e3 for _ in range(repeats)]
    report("native: parsing a world, once per game", "ms", parsing)


def time_reference(native: AlfworldSuite, reference: AlfworldSuite, repeats: int) -> None:
    tasks = native.tasks(native.splits()[0])[:REFERENCE_GAMES]
    walks = record_walks(native, tasks, REFERENCE_WALK, random.Random(1))
    ours, theirs = native.make(), reference.make()
    speeds, ratios, resets, reset_ratios = [], [], [], []
    for _ in range(repeats):
        speeds.append(steps_per_second(theirs, tasks, walks))
        ratios.append(steps_per_second(ours, tasks, walks, NATIVE_ROUNDS) / speeds[-1])
        resets.append(seconds(lambda: [theirs.reset(task) for task in tasks]) / len(tasks))
        reset_ratios.append(resets[-1] / seconds(lambda: ours.reset(tasks[0]), CALLS))
    report("TextWorld: steps with admissible commands", "steps/s", speeds)
    report("TextWorld: reset to another game", "s", resets)
    report("ratio of steps per second", "x", ratios)
    report("ratio of reset times", "x", reset_ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="directory of games; default: generated ones")
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.data is None:
        sizes = GeneratorConfig().model_dump(exclude={"seed"})
        games = generate_split(0, options.split, options.games, **sizes)
    else:
        games = load_games(options.data, options.split)
        games = random.Random(0).sample(games, min(options.games, len(games)))
    native = AlfworldSuite({options.split: games})
    print(f"{len(games)} games of {options.split}, {options.data or 'generated'}")
    time_native(native, games, options.repeats)
    try:
        reference = AlfworldSuite({options.split: games}, engine="textworld")
    except AgentRLError as error:
        print(f"No comparison: {error}")
        return
    time_reference(native, reference, options.repeats)


if __name__ == "__main__":
    main()
