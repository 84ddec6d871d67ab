"""What an episode works on: files that can be read and changed, tests that can be run, hidden tests that grade."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Protocol

from agentbench_rl.envs.code.games import Game, Games, Project
from agentbench_rl.envs.code.injector import graded_run, is_test
from agentbench_rl.envs.code.logs import row_name
from agentbench_rl.envs.code.testing import Tester, TestRun
from agentbench_rl.envs.code.tree import Hit, Tree
from agentbench_rl.types import InfrastructureError

_SHOWN_FAILURES = 5
_SHOWN_OUTPUT = 300


class Workspace(Protocol):
    """The files of an episode and its tests."""

    @property
    def key(self) -> str:
        """Hash of the content."""

    def paths(self) -> Sequence[str]:
        """Sorted paths of the files."""

    def read(self, path: str) -> str | None:
        """Text of a file, None where there is none; raises PathError for what may not be read."""

    def search(self, text: str) -> Sequence[Hit]:
        """Lines that hold a text, sorted by path and line."""

    def write(self, path: str, text: str) -> None:
        """Change or add a file; raises PathError where that cannot be."""

    def test(self, name: str | None) -> str:
        """Run visible tests and tell their results."""

    def share(self) -> float | None:
        """Share of the hidden tests that pass now, or None where that would cost too much."""

    def solved(self) -> bool:
        """Whether all hidden tests pass."""

    def snapshot(self) -> object:
        """The content as a value."""

    def restore(self, snapshot: object) -> None:
        """Return to a content."""

    def copy(self) -> Workspace:
        """An independent copy."""

    def close(self) -> None:
        """Release what is held; idempotent."""


class TreeWorkspace:
    """A work tree as a value, whose tests run in the sandbox."""

    def __init__(self, games: Games, game: Game, tester: Tester, tree: Tree | None = None) -> None:
        self._games, self._game, self._tester = games, game, tester
        self._project: Project = games.project(game)
        self._tree = tree or games.start(game)

    @property
    def key(self) -> str:
        """Hash of the content."""
        return self._tree.key

    def paths(self) -> Sequence[str]:
        """Sorted paths of the files."""
        return self._tree.paths

    def read(self, path: str) -> str | None:
        """Text of a file, None where there is none."""
        return self._tree.read(path)

    def search(self, text: str) -> Sequence[Hit]:
        """Lines that hold a text."""
        return self._tree.search(text)

    def write(self, path: str, text: str) -> None:
        """Change or add a file."""
        self._tree = self._tree.write(path, text)

    def test(self, name: str | None) -> str:
        """Run visible tests of the tree as it is now."""
        tests: dict[str, tuple[str, ...]] = {path: () for path in self._tree.paths if is_test(path)}
        if name is not None:
            tests = self._named(name, list(tests))
        if not tests:
            return f"There is no test {name[:80]!r}." if name else "There are no tests."
        run = self._tester.run(self._tree, tests, self._project.framework, self._project.python)
        return _report(run)

    def share(self) -> float:
        """Share of the hidden tests of the faulty module that pass; known without a run at the start."""
        graded = self._judged()
        if self._tree.key == self._games.start(self._game).key:
            return 1 - len(self._game.failing) / len(graded)
        module = PurePosixPath(self._game.fault.path).name if self._game.fault else None
        return len(self._passed(module) & graded) / len(graded)

    def solved(self) -> bool:
        """Whether all hidden tests of the project pass."""
        return self._passed() >= set(self._project.graded)

    def snapshot(self) -> object:
        """What was changed."""
        return dict(self._tree.changes)

    def restore(self, snapshot: object) -> None:
        """Return to what was changed."""
        if not isinstance(snapshot, dict):
            raise InfrastructureError(f"code: {type(snapshot).__name__} is no snapshot of a work tree")
        self._tree = Tree(self._project.base, dict(snapshot))

    def copy(self) -> TreeWorkspace:
        """A copy; trees are shared, they never change."""
        return TreeWorkspace(self._games, self._game, self._tester, self._tree)

    def close(self) -> None:
        """Nothing is held."""

    def _passed(self, module: str | None = None) -> frozenset[str]:
        """Graded tests that pass, as an instance's row names them: of several tests of one name all have to."""
        run = graded_run(self._project, self._tree, self._tester, module)
        if self._game.instance is None:
            return run.passed
        repo = self._game.task_type
        failed = {row_name(result.test, repo) for result in run.results if not result.passed}
        return frozenset(row_name(test, repo) for test in run.passed) - failed

    def _judged(self) -> frozenset[str]:
        fault = self._game.fault
        end = f"test_{PurePosixPath(fault.path).name}" if fault else ""
        return frozenset(test for test in self._project.graded if test.partition("::")[0].endswith(end))

    def _named(self, name: str, paths: Sequence[str]) -> dict[str, tuple[str, ...]]:
        path, _, function = name.rpartition("::") if "::" in name else (name, "", "")
        if path in paths:
            return {path: (function,) if function else ()}
        word = re.escape(name)
        return {p: (name,) for p in paths if re.search(rf"^def {word}\(", self._tree.read(p) or "", re.MULTILINE)}


def _report(run: TestRun) -> str:
    failed = [result for result in run.results if not result.passed]
    lines = [f"{len(run.passed)} passed, {len(failed)} failed"]
    for result in failed[:_SHOWN_FAILURES]:
        lines.append(f"FAILED {result.test}: {result.call}")
        lines += [f"  expected: {result.expected}"] if result.expected is not None else []
        lines.append(f"  got: {result.got}")
        if result.output.strip():
            lines.append(f"  printed: {result.output.strip()[:_SHOWN_OUTPUT]}")
    if len(failed) > _SHOWN_FAILURES:
        lines.append(f"[{len(failed) - _SHOWN_FAILURES} more failures]")
    if run.late or run.cut:
        lines.append("[the run was stopped at its limit of " + ("time]" if run.late else "output]"))
    return "\n".join(lines)
