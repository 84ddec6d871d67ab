"""The games of ALFWorld as a suite: tasks by split, and episodes in the native engine or in TextWorld."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from agentbench_rl.config.environment import AlfworldEnvironment
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.envs.alfworld.gamefile import GameFile, available_splits, load_games, write_packed
from agentbench_rl.envs.alfworld.generator import generate_split
from agentbench_rl.envs.alfworld.search_expert import SearchExpert
from agentbench_rl.envs.alfworld.textworld_engine import TextWorldEngine, textworld_version
from agentbench_rl.envs.alfworld.world import World, parse_world
from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.tasks import SplitTasks
from agentbench_rl.types import AgentRLError, Task

#: Raised with every change of a text, a command or an outcome.
NATIVE_VERSION = "alfworld-native-1"
_CACHED_WORLDS = 1024


class AlfworldSuite(SplitTasks):
    """Games by split; implements `Suite`. Worlds are parsed when first played and kept while in use."""

    def __init__(
        self, games: Mapping[str, Sequence[GameFile]], engine: Literal["native", "textworld"] = "native"
    ) -> None:
        self._native = engine == "native"
        self._games = {game.task_id: game for split in games.values() for game in split}
        tasks = {
            split: [Task(game.task_id, game.task_type, split, game.content_hash) for game in members]
            for split, members in games.items()
        }
        super().__init__("ALFWorld", "game", NATIVE_VERSION if self._native else textworld_version(), tasks)
        self._world = lru_cache(_CACHED_WORLDS)(self._parse)

    @classmethod
    def from_path(
        cls,
        path: Path,
        splits: Sequence[str] | None = None,
        engine: Literal["native", "textworld"] = "native",
    ) -> AlfworldSuite:
        """Load the given splits (None: all that are there) from a directory, see `gamefile.load_games`.

        Raises AgentRLError when there are none or a file is damaged.
        """
        names = available_splits(path) if splits is None else tuple(splits)
        if not names:
            raise AgentRLError(f"{path}: holds no ALFWorld games; fetch them or generate some.")
        return cls({split: load_games(path, split) for split in names}, engine)

    def make(self) -> Environment:
        """A new episode; its `reset` raises AgentRLError for a task that is not in the suite."""
        return AlfworldEngine(self._find_world) if self._native else TextWorldEngine(self._find_game)

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write the games of the tasks in packed form, from which `from_path` opens them again."""
        write_packed([self._find_game(task) for task in tasks], directory)

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """The expert `search` (sees what an agent sees), `planner` (sees all) or `walkthrough` (recorded).

        Raises AgentRLError for any other kind.
        """
        if kind == "search":
            return SearchExpert(seed).act
        if kind == "planner":
            return lambda _observation, _executed: environment.expert_action()
        if kind == "walkthrough":
            return _follow(self._find_game(task).walkthrough)
        raise AgentRLError(f"ALFWorld has no expert {kind!r}; there are search, planner and walkthrough.")

    def _find_game(self, task: Task) -> GameFile:
        self.check(task)
        return self._games[task.task_id]

    def _find_world(self, task: Task) -> World:
        return self._world(self._find_game(task).task_id)

    def _parse(self, task_id: str) -> World:
        return parse_world(self._games[task_id])


def open_source(environment: AlfworldEnvironment, counts: Mapping[str, int | None]) -> AlfworldSuite:
    """The games at `environment.data`, or generated ones, `counts` of each split."""
    if environment.data is not None:
        return AlfworldSuite.from_path(environment.data, tuple(counts), engine=environment.engine)
    sizes = environment.generator.model_dump(exclude={"seed"})
    games = {
        split: generate_split(environment.generator.seed, split, count or 0, **sizes) for split, count in counts.items()
    }
    return AlfworldSuite(games, engine=environment.engine)


def open_games(environment: AlfworldEnvironment, games: Path, splits: Sequence[str] | None) -> AlfworldSuite:
    """The games that the panel stage wrote."""
    return AlfworldSuite.from_path(games, splits, engine=environment.engine)


def _follow(walkthrough: Sequence[str]) -> Demonstrator:
    """Propose the commands of a walkthrough, each until it was executed."""
    position = 0

    def act(observation: str, executed: str | None) -> str | None:
        nonlocal position
        if position < len(walkthrough) and executed == walkthrough[position]:
            position += 1
        return walkthrough[position] if position < len(walkthrough) else None

    return act
