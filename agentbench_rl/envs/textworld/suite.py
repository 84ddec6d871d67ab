"""Games made by `tw-make`: files `<name>.z8`, each with `<name>.json` beside it.

They stand in `train/`, `validation/` and `test/` of the directory `data`, or side by side, and are then split 7 : 1 : 2
by a hash of their name. Only admissible commands reach the interpreter, which others can crash.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentbench_rl.config.environment import TextworldEnvironment
from agentbench_rl.envs.listed import GameSuite
from agentbench_rl.envs.replay import TextGame
from agentbench_rl.types import AgentRLError, StepResult, Task

#: Raised with every change of the adapter that changes a text or an outcome.
VERSION = "textworld-1"
NOT_POSSIBLE = "That is not possible now."
#: Of 10 games side by side, how many are for training, for validation and for the test.
_PARTS = ("train",) * 7 + ("validation",) + ("test",) * 2
_SUFFIXES = (".z8", ".json")


class TextworldGame(TextGame):
    """A game at a time, from `files`, by task_id."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._path: Path | None = None
        self._env: Any = None
        self._state: Any = None

    def start(self, task: Task) -> str:
        """Load the task's file; the title page is left out of what it says."""
        if self._files[task.task_id] != self._path:
            self.close()
            self._path = self._files[task.task_id]
            self._env = _load(self._path)
        self._state = self._env.reset()
        text = str(self._state.feedback)
        return _shown(text[max(0, text.find(self._state.objective)) :])

    def act(self, action: str) -> StepResult:
        """Execute a command."""
        command = action.strip()
        if command not in self._state.admissible_commands:
            return StepResult(NOT_POSSIBLE, 0.0, False, False)
        self._state, _, done = self._env.step(command)
        won = bool(self._state.won)
        return StepResult(_shown(self._state.feedback), 1.0 if won else 0.0, bool(done), won)

    def state(self) -> str:
        """All facts, and the points: what was done for the quest and cannot be undone."""
        return "\n".join([str(self._state.score), *sorted(str(fact) for fact in self._state.facts)])

    def admissible(self) -> list[str]:
        """Sorted admissible commands."""
        return sorted(set(self._state.admissible_commands))

    def progress(self) -> float:
        """Points out of the most there are."""
        if self._state.won:
            return 1.0
        return min(1.0, max(0.0, (self._state.score or 0) / max(1, self._state.max_score or 0)))

    def expert_action(self) -> str | None:
        """The next command of TextWorld's own plan."""
        commands = self._state.policy_commands
        return str(commands[0]) if commands else None

    def close(self) -> None:
        """Close the interpreter."""
        if self._env is not None:
            self._env.close()
        self._env = self._path = None


class TextworldSuite(GameSuite):
    """Games by split; `files` holds the path of each, by split and name."""

    def __init__(self, files: Mapping[str, Mapping[str, Path]]) -> None:
        self._files = {f"{split}/{name}": file for split, named in files.items() for name, file in named.items()}
        tasks = {
            split: [Task(f"{split}/{name}", "textworld", split, _content(file)) for name, file in named.items()]
            for split, named in files.items()
        }
        super().__init__("TextWorld", f"{VERSION}, textworld {_version()}", tasks, lambda: TextworldGame(self._files))

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Copy the files of the tasks."""
        directory.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            name = task.task_id.removeprefix(f"{task.split}/")
            for suffix in _SUFFIXES:
                source = self._files[task.task_id].with_suffix(suffix)
                shutil.copyfile(source, directory / f"games_{task.split}.{name}{suffix}")


def open_source(environment: TextworldEnvironment, counts: Mapping[str, int | None]) -> TextworldSuite:
    """The games of the directory `environment.data`."""
    data = environment.data
    assert data is not None
    if any((data / split).is_dir() for split in environment.splits):
        return TextworldSuite({split: _games(data / split) for split in counts})
    games = _games(data)
    return TextworldSuite({split: {n: file for n, file in games.items() if _split_of(n) == split} for split in counts})


def open_games(environment: TextworldEnvironment, games: Path, splits: Sequence[str] | None) -> TextworldSuite:
    """The games that the panel stage copied."""
    found: dict[str, dict[str, Path]] = {split: {} for split in splits or ()}
    for file in sorted(games.glob("games_*.z8")):
        split, _, name = file.stem.removeprefix("games_").partition(".")
        if splits is None or split in splits:
            found.setdefault(split, {})[name] = file
    return TextworldSuite(found)


def _games(directory: Path) -> dict[str, Path]:
    files = sorted(directory.glob("*.z8"))
    if not files:
        others = ", ".join(sorted({file.suffix for file in directory.glob("*") if file.suffix})) or "nothing"
        raise AgentRLError(
            f"environment.data: {directory} holds no .z8 games of tw-make ({others}); "
            f"make some with `tw-make custom --output {directory}/NAME.z8`"
        )
    for file in files:
        if not file.with_suffix(".json").is_file():
            raise AgentRLError(f"{file}: {file.stem}.json, which tw-make writes beside it, is missing")
    return {file.stem: file for file in files}


def _split_of(name: str) -> str:
    return _PARTS[int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % len(_PARTS)]


def _content(file: Path) -> str:
    """The game as it is described, and as it runs without the serial number of its compilation."""
    try:
        described = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentRLError(f"{file.with_suffix('.json')}: cannot be read: {error}; make the game again.") from error
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _load(file: Path) -> Any:
    import textworld

    wanted = {"won", "objective", "score", "max_score", "admissible_commands", "policy_commands", "facts"}
    return textworld.start(str(file), textworld.EnvInfos(feedback=True, **dict.fromkeys(wanted, True)))


def _shown(text: str) -> str:
    """What is said before the next prompt, and the status line behind it."""
    return text.partition("\n>")[0].strip()


def _version() -> str:
    try:
        return version("textworld")
    except PackageNotFoundError as error:
        raise AgentRLError(f"environment textworld: {error}; pip install 'agentbench_rl[textworld]'") from error
