"""Plays ALFWorld games in the native engine and in TextWorld side by side and reports every difference.

Compared after every command: observation, sorted admissible commands, reward, done, won. Each game is played along
its recorded walkthrough, along a shuttle that carries an object around the receptacles of its place, and along a
seeded random walk that prefers commands which change something and includes commands that are none. Needs the extra
`alfworld`. The log is resumable: games already in it are not played again.

    python benchmarks/alfworld_conformance.py DATA --log results/alfworld_conformance.jsonl --workers 2
"""

from __future__ import annotations

import argparse
import atexit
import json
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.envs.alfworld.gamefile import GameFile, available_splits, load_games
from agentbench_rl.envs.alfworld.suite import NATIVE_VERSION
from agentbench_rl.envs.alfworld.textworld_cache import memoised
from agentbench_rl.envs.alfworld.textworld_engine import TextWorldEngine, textworld_version
from agentbench_rl.envs.alfworld.world import World, parse_world
from agentbench_rl.types import Task

NONSENSE = ("dance", "", "take", "go to moon 1", "Look", "put apple 1 in/on fridge 1", "open  fridge 1", "use lamp")
_IDLE = ("go to", "examine", "look", "inventory", "help")


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of one game: how many commands were compared, and where the engines differ."""

    task_id: str
    commands: int
    differences: tuple[str, ...]


def check_game(game: GameFile, steps: int, seed: int) -> Check:
    """Play one game in both engines; `steps` is the length of the random walk."""
    task = Task(game.task_id, game.task_type, game.split, game.content_hash)
    world = parse_world(game)
    native, reference = AlfworldEngine(lambda _: world), TextWorldEngine(lambda _: game)
    differences: list[str] = []
    commands = 0
    for kind, walk in _walks(game, world, native, steps, random.Random(f"{seed}/{game.task_id}")):
        if native.reset(task) != reference.reset(task):
            differences.append(f"{kind}: first observation")
        for command in walk:
            commands += 1
            ours, theirs = native.step(command), reference.step(command)
            for what, one, other in (
                ("observation", ours.observation, theirs.observation),
                ("commands", native.admissible(), reference.admissible()),
                ("outcome", (ours.reward, ours.done, ours.success), (theirs.reward, theirs.done, theirs.success)),
            ):
                if one != other:
                    differences.append(f"{kind}: {what} after {command!r}: {one!r} instead of {other!r}")
            if ours.done or theirs.done:
                break
    return Check(game.task_id, commands, tuple(differences))


def _walks(
    game: GameFile, world: World, native: AlfworldEngine, steps: int, rng: random.Random
) -> Iterator[tuple[str, Iterator[str]]]:
    yield "walkthrough", iter(game.walkthrough)
    yield "shuttle", iter(_shuttle(world, rng))
    yield "random", _random_walk(native, steps, rng)


def _random_walk(native: AlfworldEngine, steps: int, rng: random.Random) -> Iterator[str]:
    for _ in range(steps):
        commands = native.admissible()
        active = [command for command in commands if not command.startswith(_IDLE)]
        draw = rng.random()
        yield rng.choice(NONSENSE if draw < 0.08 else active if active and draw < 0.65 else commands)


def _shuttle(world: World, rng: random.Random) -> list[str]:
    """Carry an object once around the receptacles of its place, looking each time; empty where it has but one."""
    routes = [
        (item, (here, *others))
        for here, items in enumerate(world.start.contents)
        for item in items
        if item in world.pickupable
        and (others := [there for there in _beside(world, here) if item in world.accepts[there]])
    ]
    if not routes:
        return []
    most = min(4, max(len(stops) for _, stops in routes))
    item, stops = rng.choice([(item, stops[:most]) for item, stops in routes if len(stops) >= most])
    name, places = world.object_names[item], [world.receptacle_names[stop] for stop in stops]
    commands = [f"go to {places[0]}"]
    commands += [f"open {place}" for stop, place in zip(stops, places, strict=True) if stop in world.openable]
    for here, there in pairwise([*places, places[0]]):
        commands += [f"take {name} from {here}", f"move {name} to {there}", "look"]
    return commands


def _beside(world: World, receptacle: int) -> list[int]:
    return [other for other in world.receptacles_at[world.location_of[receptacle]] if other != receptacle]


def _begin() -> None:
    """A worker keeps what it memoised for all of its games."""
    stack = ExitStack()
    stack.enter_context(memoised())
    atexit.register(stack.close)


def _play(job: tuple[GameFile, int, int]) -> Check:
    return check_game(*job)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory of the games (packed form or official tree)")
    parser.add_argument("--log", type=Path, default=Path("results/alfworld_conformance.jsonl"))
    parser.add_argument("--splits", nargs="*", default=None)
    parser.add_argument("--steps", type=int, default=25, help="length of the random walk of each game")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    setting = {"native": NATIVE_VERSION, "reference": textworld_version(), "steps": options.steps, "seed": options.seed}
    splits = options.splits or available_splits(options.data)
    games = [game for split in splits for game in load_games(options.data, split)]
    done = _read_log(options.log, setting)
    jobs = [(game, options.steps, options.seed) for game in games if game.task_id not in done]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    columns = (*Progress.get_default_columns()[:1], BarColumn(), MofNCompleteColumn())
    with (
        options.log.open("a", encoding="utf-8") as log,
        get_context("spawn").Pool(options.workers, _begin, maxtasksperchild=100) as pool,
        Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(elapsed_when_finished=True)) as progress,
    ):
        bar = progress.add_task("games", total=len(games), completed=len(games) - len(jobs))
        for check in pool.imap_unordered(_play, jobs):
            done[check.task_id] = check
            log.write(json.dumps({**setting, **asdict(check)}) + "\n")
            log.flush()
            progress.advance(bar)
            for difference in check.differences:
                progress.console.print(f"{check.task_id}: {difference}", markup=False)
    checks = [done[game.task_id] for game in games]
    differing = sum(bool(check.differences) for check in checks)
    print(f"{len(checks)} games, {sum(check.commands for check in checks)} commands, {differing} games differ")
    return 1 if differing else 0


def _read_log(file: Path, setting: dict[str, object]) -> dict[str, Check]:
    """Games already checked in the same setting; an unfinished last line is ignored."""
    done: dict[str, Check] = {}
    if not file.is_file():
        return done
    text = file.read_text(encoding="utf-8")
    for line in text[: text.rfind("\n") + 1].splitlines():
        record = json.loads(line)
        if setting.items() <= record.items():
            done[record["task_id"]] = Check(record["task_id"], record["commands"], tuple(record["differences"]))
    return done


if __name__ == "__main__":
    sys.exit(main())
