"""Tasks of code repair as a suite: faults in libraries, or instances in the columns of SWE-bench."""

from __future__ import annotations

import re
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from agentbench_rl.config.environment import CodeEnvironment
from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.code.actions import edit_action
from agentbench_rl.envs.code.container import ContainerWorkspace
from agentbench_rl.envs.code.docker import check_docker, remove_images
from agentbench_rl.envs.code.episode import CodeEpisode, Start
from agentbench_rl.envs.code.games import Fault, Game, Games, read_games, write_games
from agentbench_rl.envs.code.injector import directory_projects, inject, library_projects
from agentbench_rl.envs.code.instances import container_games, directory_games, instance_of, read_instances
from agentbench_rl.envs.code.mutations import function_around
from agentbench_rl.envs.code.patches import solving_calls, stands_once
from agentbench_rl.envs.code.sandbox import Sandbox
from agentbench_rl.envs.code.testing import Tester
from agentbench_rl.envs.code.workspace import TreeWorkspace, Workspace
from agentbench_rl.envs.tasks import SplitTasks
from agentbench_rl.types import AgentRLError, Task

#: Raised with every change of a text, a tool or an outcome.
VERSION = "code-3"
#: Lines before a fault that the expert reads at least, where its function has begun long before.
_MARGIN = 12
_WORD = re.compile(r"\w+|[^\w\s]")


class CodeSuite(SplitTasks):
    """Tasks by split; implements `Suite`. All its episodes share one sandbox and its memory of test runs."""

    def __init__(self, games: Games, environment: CodeEnvironment, tester: Tester, splits: Sequence[str]) -> None:
        self._games, self._environment, self._tester = games, environment, tester
        tasks = {split: [game.task for game in games.games if game.split == split] for split in splits}
        super().__init__("code repair", "task", VERSION, tasks)
        self._game = {game.task.task_id: game for game in games.games}
        self._repairs: dict[Game, Sequence[str]] = {}
        #: Images that snapshots of containers made; they go with the suite.
        self._images: list[str] = []
        weakref.finalize(self, remove_images, self._images)

    def make(self) -> Environment:
        """A new episode."""
        limits = self._environment.limits
        return CodeEpisode(self._begin, self._environment.max_turns, limits.observation_characters)

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """The expert `scripted`: reads, takes the fault back or makes an instance's patch, tests a fault, submits."""
        if kind != "scripted":
            raise AgentRLError(f"code repair has no expert {kind!r}; there is scripted.")
        game = self._find(task)
        if game.fault is not None:
            return _follow(_script(game.fault, self._games.project(game).base.read(game.fault.path) or ""))
        calls = self._repair(game)
        if not calls:
            raise AgentRLError(
                f"code repair: no expert knows how to solve {task.task_id}; its row has no `patch` of edits"
            )
        return _follow([*calls, "submit"])

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write the tasks and their projects."""
        write_games(self._games, [self._find(task) for task in tasks], directory)

    def _begin(self, task: Task) -> Start:
        game = self._find(task)
        return Start(game.issue, self._workspace(game), partial(self._edits, game))

    def _workspace(self, game: Game) -> Workspace:
        instance = instance_of(self._games.project(game))
        if instance is not None:
            return ContainerWorkspace(instance, self._environment.docker, self._images)
        return TreeWorkspace(self._games, game, self._tester)

    def _edits(self, game: Game) -> list[str]:
        """The edits that solve a task; none where they are not known."""
        if game.fault is not None:
            original = self._games.project(game).base.read(game.fault.path) or ""
            return [solving_edit(game.fault, original)]
        return [call for call in self._repair(game) if call.startswith("edit ")]

    def _repair(self, game: Game) -> Sequence[str]:
        """The calls that make the known patch of an instance."""
        if game not in self._repairs:
            workspace, patch = self._workspace(game), self._games.project(game).patch
            self._repairs[game] = solving_calls(patch, workspace.read) if patch else []
            workspace.close()
        return self._repairs[game]

    def _find(self, task: Task) -> Game:
        self.check(task)
        return self._game[task.task_id]


def open_source(environment: CodeEnvironment, counts: Mapping[str, int | None]) -> CodeSuite:
    """Faults in the libraries that ship or in those at `environment.data`, or the instances of a file there."""
    data = environment.data
    if data is not None and data.is_file():
        instances = _instances(data, counts)
        return CodeSuite(instances, environment, _tester(environment, instances), tuple(counts))
    tester = Tester(Sandbox(environment.isolation, environment.limits))
    if None in counts.values():
        raise AgentRLError("code: faults have no end; give the panels a size instead of `all`")
    projects = library_projects() if data is None else directory_projects(data, tester)
    games = [
        game
        for split, count in counts.items()
        for game in inject(projects, environment.generator, split, count or 0, tester)
    ]
    return CodeSuite(Games(projects, tuple(games)), environment, tester, tuple(counts))


def open_games(environment: CodeEnvironment, games: Path, splits: Sequence[str] | None) -> CodeSuite:
    """The tasks that the panel stage wrote."""
    loaded = read_games(games, splits)
    names = splits if splits is not None else [s for s in environment.splits if any(g.split == s for g in loaded.games)]
    if any(instance_of(project) for project in loaded.projects.values()):
        check_docker()
    return CodeSuite(loaded, environment, _tester(environment, loaded), names)


def _tester(environment: CodeEnvironment, games: Games) -> Tester:
    """What runs tests on this machine; it needs no isolation where all run in containers."""
    contained = all(instance_of(project) for project in games.projects.values())
    return Tester(Sandbox("none" if contained else environment.isolation, environment.limits))


def _instances(path: Path, counts: Mapping[str, int | None]) -> Games:
    """Instances of a file: those with a directory run here, the others in containers; dealt to splits by their ids."""
    instances = read_instances(path)
    here = [instance for instance in instances if instance.directory is not None]
    contained = [instance for instance in instances if instance.directory is None]
    if contained:
        check_docker()
    parts = [directory_games(here, path.parent), container_games(contained)]
    games = [game for part in parts for game in part.games if game.split in counts]
    return Games({**parts[0].projects, **parts[1].projects}, tuple(games))


def _script(fault: Fault, original: str) -> list[str]:
    function = function_around(original, fault.start)
    line = original[: fault.start].count("\n") + 1
    heads = [number for number, text in enumerate(original.split("\n"), 1) if f"def {function}(" in text]
    first = max([head for head in heads if head <= line], default=line)
    read = f"read {fault.path} {max(first, line - _MARGIN)}"
    return [f"search def {function}", read, solving_edit(fault, original), "test", "submit"]


def solving_edit(fault: Fault, original: str) -> str:
    """The edit that takes a fault back: the least text around it, of whole words, that stands once in the file."""
    faulty = original[: fault.start] + fault.new + original[fault.end :]
    words = [match.span() for match in _WORD.finditer(faulty)]
    starts, ends = [start for start, _ in words], [end for _, end in words]
    left = bisect_right(starts, fault.start) - 1
    right = bisect_left(ends, fault.start + len(fault.new))
    widen_left = True
    while not stands_once(faulty, faulty[starts[left] : ends[right]], starts[left]):
        if (widen_left and left > 0) or right == len(words) - 1:
            left -= 1
        else:
            right += 1
        widen_left = not widen_left
    start, end = starts[left], ends[right]
    return edit_action(fault.path, faulty[start:end], original[start : end + len(original) - len(faulty)])


def _follow(script: Sequence[str]) -> Demonstrator:
    """Propose the calls of a script, each until it was executed."""
    waiting: Iterator[str] = iter(script)
    current = next(waiting)

    def act(observation: str, executed: str | None) -> str | None:
        nonlocal current
        if executed == current:
            current = next(waiting, "submit")
        return current

    return act
