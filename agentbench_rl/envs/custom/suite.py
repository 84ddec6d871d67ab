"""A user's environment: `factory` names what makes it, a TextGame or a Suite.

Of a TextGame, tasks are seeds. Of a Suite, they are its own; it is made anew by its factory wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from agentbench_rl.config.environment import CustomEnvironment
from agentbench_rl.envs.base import Demonstrator, Environment, Suite
from agentbench_rl.envs.listed import GameSuite, ListedSuite, read_listed, seeded_tasks
from agentbench_rl.envs.replay import TextGame
from agentbench_rl.types import AgentRLError, Task


class UserSuite(ListedSuite):
    """Some tasks of a user's Suite."""

    def __init__(self, suite: Suite, tasks: Mapping[str, Sequence[Task]]) -> None:
        super().__init__("custom", suite.version, tasks)
        self._suite = suite

    def make(self) -> Environment:
        """What the user's suite makes."""
        return self._suite.make()

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """What the user's suite has."""
        return self._suite.demonstrator(kind, environment, task, seed)


def open_source(environment: CustomEnvironment, counts: Mapping[str, int | None]) -> GameSuite | UserSuite:
    """So many seeds of each split, or the tasks of the user's suite."""
    made = _made(environment)
    if isinstance(made, TextGame):
        identity = [environment.factory, environment.options]
        kind = environment.factory.partition(":")[2]
        return _games(environment, made, seeded_tasks(kind, environment.generator.seed, identity, counts))
    return UserSuite(made, {split: made.tasks(split) for split in counts})


def open_games(environment: CustomEnvironment, games: Path, splits: Sequence[str] | None) -> GameSuite | UserSuite:
    """The tasks that the panel stage wrote."""
    made, tasks = _made(environment), read_listed(games, splits)
    return _games(environment, made, tasks) if isinstance(made, TextGame) else UserSuite(made, tasks)


def _games(environment: CustomEnvironment, game: TextGame, tasks: Mapping[str, Sequence[Task]]) -> GameSuite:
    factory = _factory(environment.factory)
    return GameSuite(environment.factory, f"custom, {game.version}", tasks, lambda: factory(**_options(environment)))


def _made(environment: CustomEnvironment) -> Any:
    try:
        made = _factory(environment.factory)(**_options(environment))
    except TypeError as error:
        raise AgentRLError(f"environment.options: {environment.factory} does not take them: {error}") from error
    needed = ("version", "tasks", "make", "demonstrator")
    if not isinstance(made, TextGame) and not all(hasattr(made, name) for name in needed):
        raise AgentRLError(
            f"environment.factory: {environment.factory} made a {type(made).__name__}, which is neither a TextGame "
            "nor a Suite"
        )
    return made


def _options(environment: CustomEnvironment) -> dict[str, Any]:
    data = environment.data
    return environment.options if data is None else environment.options | {"data": data}


def _factory(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise AgentRLError(
            f"environment.factory: {name} cannot be loaded: {error}; install the module, or name its directory in "
            "PYTHONPATH"
        ) from error
