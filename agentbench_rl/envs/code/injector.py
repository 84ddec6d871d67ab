"""Seeded faults in projects: only those that a hidden test notices, each told by what a user would see of it.

A function belongs to one split for ever, whatever the seed: a policy never trains on a function that tests it.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

from agentbench_rl.config.environment import CodeGenerator
from agentbench_rl.envs.code.games import Fault, Game, Project, apply_fault, split_by_hash
from agentbench_rl.envs.code.issue import issue_text
from agentbench_rl.envs.code.library import library_files, library_names
from agentbench_rl.envs.code.mutations import Mutation, mutations, parses
from agentbench_rl.envs.code.runner import ENDLESS
from agentbench_rl.envs.code.testing import Tester, TestRun
from agentbench_rl.envs.code.tree import TextBase, Tree, text_base
from agentbench_rl.types import AgentRLError

#: Every so many-th test of a file stands in the work tree; the others are hidden.
_VISIBLE_EACH = 3
#: So many candidates are tried at a time: those of one file share a start of the sandbox.
_BATCH = 96
#: CPU seconds in which a test of the libraries that ship has long ended; endless ones cost no more.
_QUICK = 0.25
_Candidate = tuple[str, Fault, str]


def inject(
    projects: Mapping[str, Project], generator: CodeGenerator, split: str, count: int, tester: Tester
) -> list[Game]:
    """`count` tasks of a split, kinds of faults in turn; a smaller count gives the first of them.

    projects: by key. Raises AgentRLError when so many cannot be made.
    """
    games: list[Game] = []
    seen: set[str] = set()
    candidates = _candidates(projects, generator, split)
    while len(games) < count and (batch := list(islice(candidates, _next(count - len(games))))):
        for game in _games(projects, batch, split, tester):
            if len(games) < count and game.content_hash not in seen:
                seen.add(game.content_hash)
                games.append(game)
    if len(games) < count:
        raise AgentRLError(
            f"code: {count} tasks of split {split!r} are asked for, and the libraries give {len(games)}; "
            "ask for fewer, or add libraries with `agentrl env fetch code DIR` and environment.data=DIR"
        )
    return games


def _next(missing: int) -> int:
    """How many candidates to try for so many tasks: every third comes to nothing."""
    return min(_BATCH, missing * 3 // 2 + 1)


def split_of(project: str, path: str, function: str) -> str:
    """The split of a function, by the hash of its name."""
    return split_by_hash(f"{project}/{path}:{function}")


def library_projects() -> dict[str, Project]:
    """The libraries that ship, by key; all their tests pass."""
    projects = []
    for name in library_names():
        files, path = library_files(name), f"tests/test_{name}.py"
        graded = tuple(sorted(f"{path}::{test.name}" for test in _tests(ast.parse(files[path]))))
        base = TextBase({**files, path: visible_part(files[path])})
        projects.append(Project(name, base, {path: files[path]}, graded, "plain"))
    return {project.key: project for project in projects}


def directory_projects(directory: Path, tester: Tester) -> dict[str, Project]:
    """One project for each folder of `directory`; raises AgentRLError when there is none with tests that pass."""
    projects = []
    for root in sorted(path for path in directory.iterdir() if path.is_dir()):
        texts = text_base(root).files.items()
        files = {path: text for path, text in texts if path[:5] != "docs/" and ".egg-info/" not in path}
        # The version is no part of the name: a function stays in its split when a library moves on.
        projects.append(make_project(root.name.partition("-")[0], files, tester))
    usable = {project.key: project for project in projects if project.graded}
    if not usable:
        raise AgentRLError(
            f"{directory}: no folder of it holds a library whose tests pass; it should hold unpacked source "
            "distributions with their tests, as `agentrl env fetch code DIR` makes them (pytest must be installed)"
        )
    return usable


def make_project(name: str, files: Mapping[str, str], tester: Tester) -> Project:
    """A project of a library tested by pytest: some of its tests stay visible.

    Graded are those that pass twice, once with half of the memory: none may be decided by a limit.
    """
    tests = {path: text for path, text in files.items() if is_test(path) and _tested(path, files)}
    base = TextBase({**files, **{path: visible_part(text) for path, text in tests.items()}})
    project = Project(name, base, tests, (), "pytest")
    if not tests:
        return project
    memory = tester.sandbox.limits.memory_mb
    hidden = Tree(base, tests)
    runs = [tester.run_each([hidden], _grading(project, None), "pytest", memory_mb=m)[0] for m in (memory // 2, memory)]
    return replace(project, graded=tuple(sorted(runs[0].passed & runs[1].passed)))


def is_test(path: str) -> bool:
    """Whether a file holds tests, by its name."""
    name = PurePosixPath(path).name
    return name.startswith("test_") and name.endswith(".py")


def visible_part(source: str) -> str:
    """A test file with every third test of each class and of the module; what the tests share stays."""
    cut: list[tuple[int, int]] = []
    for parent in ast.walk(ast.parse(source)):
        if isinstance(parent, ast.Module | ast.ClassDef):
            for number, node in enumerate(_tests(parent)):
                if number % _VISIBLE_EACH:
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    cut.append((first - 1, node.end_lineno or node.lineno))
    lines = source.splitlines(keepends=True)
    for first, end in sorted(cut, reverse=True):
        lines[first:end] = []
    return _tidy("".join(lines))


def _tests(parent: ast.Module | ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in parent.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]


def _tidy(source: str) -> str:
    """At most two empty lines in a row."""
    while "\n\n\n\n" in source:
        source = source.replace("\n\n\n\n", "\n\n\n")
    return source.rstrip("\n") + "\n"


def _tested(path: str, files: Mapping[str, str]) -> bool:
    """Whether a test file is that of a module, by its name."""
    module = PurePosixPath(path).name.removeprefix("test_")
    return any(PurePosixPath(other).name == module and other != path for other in files)


def _candidates(projects: Mapping[str, Project], generator: CodeGenerator, split: str) -> Iterator[_Candidate]:
    """(project's key, fault, kind) of a split in the order in which they are tried."""
    rng = random.Random(f"code/{generator.seed}/{split}")
    piles: dict[str, list[tuple[str, Fault]]] = {kind: [] for kind in generator.kinds}
    for key in sorted(projects, key=lambda key: projects[key].name):
        for path, mutation in _mutations_of(projects[key], split):
            if mutation.kind in piles:
                piles[mutation.kind].append((key, Fault(path, mutation.start, mutation.end, mutation.new)))
    for pile in piles.values():
        rng.shuffle(pile)
    while any(piles.values()):
        for kind in piles:
            if piles[kind]:
                yield (*piles[kind].pop(), kind)


def _mutations_of(project: Project, split: str) -> Iterator[tuple[str, Mutation]]:
    modules = {PurePosixPath(path).name.removeprefix("test_") for path in project.hidden}
    for path in project.base.paths:
        if PurePosixPath(path).name in modules and not is_test(path):
            for mutation in mutations(project.base.read(path) or ""):
                if split_of(project.name, path, mutation.function) == split:
                    yield path, mutation


def _games(projects: Mapping[str, Project], batch: Sequence[_Candidate], split: str, tester: Tester) -> Iterator[Game]:
    """The tasks among the candidates, in their order."""
    files: dict[tuple[str, str], list[int]] = defaultdict(list)
    trees = [apply_fault(Tree(projects[key].base), fault) for key, fault, _ in batch]
    for number, (key, fault, _) in enumerate(batch):
        if parses(trees[number].read(fault.path) or ""):
            files[key, fault.path].append(number)
    runs: dict[int, TestRun] = {}
    for (key, path), numbers in files.items():
        project = projects[key]
        hidden = [Tree(project.base, {**trees[number].changes, **project.hidden}) for number in numbers]
        tests, quick = _grading(project, PurePosixPath(path).name), _QUICK if project.framework == "plain" else None
        found = tester.run_each(hidden, tests, project.framework, project.python, quick)
        runs |= dict(zip(numbers, found, strict=True))
    for number, (key, fault, kind) in enumerate(batch):
        if number in runs and (game := _game(key, projects[key], fault, kind, split, runs[number])) is not None:
            yield game


def _game(key: str, project: Project, fault: Fault, kind: str, split: str, run: TestRun) -> Game | None:
    """The task of a fault; None where no hidden test noticed it, or a test did not end."""
    failing = [test for test in project.graded if test not in run.passed and _belongs(test, fault.path)]
    hidden = [r for r in run.results if r.test in failing and not _is_visible(r.test, project)]
    endless = run.late or run.cut or any(result.got == ENDLESS for result in run.results)
    if not hidden or endless:
        return None
    return Game(key, split, kind, issue_text(project.name, hidden), tuple(failing), fault)


def graded_run(project: Project, tree: Tree, tester: Tester, module: str | None = None) -> TestRun:
    """Run the hidden tests over a tree, all of them or those of one module."""
    hidden = Tree(tree.base, {**tree.changes, **project.hidden})
    return tester.run(hidden, _grading(project, module), project.framework, project.python)


def _grading(project: Project, module: str | None) -> dict[str, tuple[str, ...]]:
    return {path: () for path in sorted(project.hidden) if module is None or path.endswith(f"test_{module}")}


def _belongs(test: str, path: str) -> bool:
    return test.partition("::")[0].endswith(f"test_{PurePosixPath(path).name}")


def _is_visible(test: str, project: Project) -> bool:
    """Whether a test stands in the work tree, by the name of its function."""
    path, *_, name = test.split("::")
    return f"def {name.partition('[')[0]}(" in (project.base.read(path) or "")
