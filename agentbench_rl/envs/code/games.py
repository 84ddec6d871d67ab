"""Projects and the faults in them: what a task of code repair is, and the files that hold tasks.

`projects.json` has what is common to all splits, `games_<split>.jsonl` one task a line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agentbench_rl.envs.code.testing import Framework
from agentbench_rl.envs.code.tree import Base, DirectoryBase, TextBase, Tree, content_hash
from agentbench_rl.types import AgentRLError, Task

_PROJECTS = "projects.json"


@dataclass(frozen=True)
class Project:
    """A work tree without a fault, and the tests that grade it.

    hidden: files that replace those of the tree when it is graded. graded: tests that must pass.
    python: interpreter that runs the tests (None: the one of this process). patch: a repair of the base, if known.
    """

    name: str
    base: Base
    hidden: Mapping[str, str]
    graded: tuple[str, ...]
    framework: Framework
    python: str | None = None
    patch: str | None = None

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that decides about grading."""
        facts = {"name": self.name, "base": self.base.key, "graded": json.dumps(self.graded)}
        return content_hash(facts | {f"hidden/{path}": text for path, text in self.hidden.items()})


@dataclass(frozen=True, slots=True)
class Fault:
    """Replace `start:end` of the text of a file of the project by `new`."""

    path: str
    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class Game:
    """A task: a project with a fault (None: the project itself is the faulty one) and what a user reports of it.

    failing: the graded tests that fail at first.
    """

    project: str
    split: str
    task_type: str
    issue: str
    failing: tuple[str, ...]
    fault: Fault | None = None
    instance: str | None = None

    @property
    def content_hash(self) -> str:
        """SHA-256 of what defines the task, the split aside."""
        return hashlib.sha256(json.dumps(asdict(replace(self, split="")), sort_keys=True).encode()).hexdigest()

    @property
    def task(self) -> Task:
        """The task as the rest of the toolkit sees it."""
        digest = self.content_hash
        return Task(self.instance or f"code-{self.split}-{digest[:12]}", self.task_type, self.split, digest)


@dataclass(frozen=True)
class Games:
    """Tasks with their projects by key."""

    projects: Mapping[str, Project]
    games: tuple[Game, ...]

    def project(self, game: Game) -> Project:
        """The project of a task."""
        return self.projects[game.project]

    def start(self, game: Game) -> Tree:
        """The work tree that an episode starts from."""
        tree = Tree(self.project(game).base)
        return tree if game.fault is None else apply_fault(tree, game.fault)


def split_by_hash(name: str) -> str:
    """The split of something for ever: train for 70 %, validation and test for 15 % each."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    return "train" if place < 70 else "validation" if place < 85 else "test"


def apply_fault(tree: Tree, fault: Fault) -> Tree:
    """The tree with the fault in it."""
    text = tree.read(fault.path) or ""
    return tree.write(fault.path, text[: fault.start] + fault.new + text[fault.end :])


def write_games(games: Games, chosen: Sequence[Game], directory: Path) -> None:
    """Write tasks and the projects that they need; a base on disk is named, not copied."""
    directory.mkdir(parents=True, exist_ok=True)
    needed = {key: games.projects[key] for key in sorted({game.project for game in chosen})}
    content = {key: _project_json(project) for key, project in needed.items()}
    (directory / _PROJECTS).write_text(json.dumps(content, sort_keys=True), encoding="utf-8")
    for split in sorted({game.split for game in chosen}):
        lines = [json.dumps(asdict(game), sort_keys=True) for game in chosen if game.split == split]
        (directory / f"games_{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_games(directory: Path, splits: Iterable[str] | None) -> Games:
    """Read tasks of these splits (None: all); raises AgentRLError for what is missing or damaged."""
    names = [f"games_{split}.jsonl" for split in splits] if splits is not None else None
    files = [directory / name for name in names] if names is not None else sorted(directory.glob("games_*.jsonl"))
    try:
        content = json.loads((directory / _PROJECTS).read_text(encoding="utf-8"))
        projects = {key: _project_of(row) for key, row in content.items()}
        rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        games = tuple(_game_of(row) for row in rows)
        missing = {game.project for game in games} - projects.keys()
        damaged = [project.name for key, project in projects.items() if project.key != key]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AgentRLError(f"{directory}: no readable tasks of code repair ({error}); draw the panels anew") from None
    if missing or damaged:
        raise AgentRLError(f"{directory}: projects are missing or changed ({damaged or missing}); draw the panels anew")
    return Games(projects, games)


def _project_json(project: Project) -> dict[str, Any]:
    base: dict[str, Any]
    if isinstance(project.base, DirectoryBase):
        base = {"directory": str(project.base.root), "key": project.base.key}
    else:
        base = {"files": dict(project.base.files)}
    return {
        "name": project.name,
        "base": base,
        "hidden": dict(project.hidden),
        "graded": project.graded,
        "framework": project.framework,
        "python": project.python,
        "patch": project.patch,
    }


def _project_of(row: dict[str, Any]) -> Project:
    base = row["base"]
    opened: Base = TextBase(base["files"]) if "files" in base else DirectoryBase(Path(base["directory"]), base["key"])
    graded = tuple(row["graded"])
    return Project(row["name"], opened, row["hidden"], graded, row["framework"], row["python"], row["patch"])


def _game_of(row: dict[str, Any]) -> Game:
    fault = Fault(**row["fault"]) if row["fault"] else None
    return Game(**{**row, "failing": tuple(row["failing"]), "fault": fault})
