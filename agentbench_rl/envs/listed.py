"""A suite whose tasks are a list and nothing more: all that defines a task stands in its record, or is a seed.

An export is `games_<split>.json`, the records of the tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.replay import ReplayedEnvironment, TextGame
from agentbench_rl.envs.tasks import SplitTasks
from agentbench_rl.types import AgentRLError, Task


class ListedSuite(SplitTasks):
    """Tasks by split, all of `Suite` but what plays them. `name` stands in messages."""

    def __init__(self, name: str, version: str, tasks: Mapping[str, Sequence[Task]]) -> None:
        super().__init__(name, "task", version, tasks)

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write the records of the tasks, by split."""
        directory.mkdir(parents=True, exist_ok=True)
        for split in sorted({task.split for task in tasks}):
            members = sorted((task for task in tasks if task.split == split), key=lambda task: task.task_id)
            text = json.dumps([asdict(task) for task in members], indent=1) + "\n"
            (directory / f"games_{split}.json").write_text(text, encoding="utf-8", newline="")


class GameSuite(ListedSuite):
    """Tasks by split, played by the games that `make` makes; implements `Suite`."""

    def __init__(
        self, name: str, version: str, tasks: Mapping[str, Sequence[Task]], make: Callable[[], TextGame]
    ) -> None:
        super().__init__(name, version, tasks)
        self._make = make

    def make(self) -> Environment:
        """A new episode; its `reset` raises AgentRLError for a task that is not in the suite."""
        return ReplayedEnvironment(self._make, self.check)

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """The game's own expert, `scripted`; raises AgentRLError for any other kind."""
        if kind != "scripted":
            raise AgentRLError(f"{self._name} has no expert {kind!r}; there is scripted.")
        return lambda _observation, _executed: environment.expert_action()


def seeded_tasks(kind: str, seed: int, identity: object, counts: Mapping[str, int | None]) -> dict[str, list[Task]]:
    """`counts` tasks of each split that are seeds: an `identity` (plain JSON) and a number make the content.

    The tasks of a split are the first of an endless list; raises AgentRLError when all are asked for.
    """
    if None in counts.values():
        raise AgentRLError(f"environment.data: tasks of {kind} are seeds, which no data hold; leave it away")
    return {
        split: [
            Task(f"{split}-{number:06d}", kind, split, _content([identity, seed, split, number]))
            for number in range(count or 0)
        ]
        for split, count in counts.items()
    }


def read_listed(games: Path, splits: Sequence[str] | None) -> dict[str, list[Task]]:
    """The exported tasks of these splits (None: all); raises AgentRLError for a file that cannot be read."""
    if splits is None:
        splits = sorted(file.stem.removeprefix("games_") for file in games.glob("games_*.json"))
    return {split: _read(games / f"games_{split}.json") for split in splits}


def _read(file: Path) -> list[Task]:
    try:
        return [Task(**record) for record in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise AgentRLError(f"{file}: cannot be read: {error}; draw the panels again.") from error


def _content(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
