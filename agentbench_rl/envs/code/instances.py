"""Instances in the columns of SWE-bench: how they are tested, and how a test log is read.

A row has `instance_id`, `repo`, `base_commit`, `problem_statement`, `test_patch`, `FAIL_TO_PASS` and `PASS_TO_PASS`
(lists, or lists written as JSON). Optional: `test_command` (what runs the tests; files are appended), `image`,
`split`, and for an instance that needs no container `directory` (a checkout of `base_commit`, relative to the file of
rows) and `python` (an interpreter in whose environment the tests run under pytest).

Commands and log formats are those of the harness of SWE-bench (https://github.com/SWE-bench/SWE-bench).
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_rl.envs.code.games import Game, Games, Project, split_by_hash
from agentbench_rl.envs.code.tree import DirectoryBase, TextBase
from agentbench_rl.types import AgentRLError

_PYTEST = "pytest -rA --tb=no -p no:cacheprovider"
#: Test commands of the repositories that do not use pytest alone.
_COMMANDS: Mapping[str, str] = {
    "django/django": "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    "mwaskom/seaborn": "pytest --no-header -rA",
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no",
}
_NEEDED = ("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
_OPTIONAL = ("image", "directory", "python", "split")
_STATUS = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) +(\S+)|^(\S+) +(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_COLOUR = re.compile(r"\x1b?\[\d+m")
#: What counts as passed.
_GOOD = frozenset({"PASSED", "XFAIL"})


@dataclass(frozen=True, slots=True)
class Instance:
    """A row: what is reported, what grades it, and where it runs."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    test_command: str
    image: str | None
    directory: str | None
    python: str | None
    split: str | None

    @property
    def test_files(self) -> list[str]:
        """Files that the test patch changes or adds, in its order."""
        return list(dict.fromkeys(re.findall(r"^diff --git a/\S+ b/(\S+)$", self.test_patch, re.MULTILINE)))

    @property
    def directives(self) -> list[str]:
        """What the test command is given: the test files, as labels of modules for Django."""
        files = [
            path for path in self.test_files if not path.endswith((".json", ".txt", ".md", ".csv", ".png", ".pkl"))
        ]
        if self.repo == "django/django":
            return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
        return files

    @property
    def graded(self) -> tuple[str, ...]:
        """Tests that must pass."""
        return (*self.fail_to_pass, *self.pass_to_pass)


def read_instances(path: Path) -> list[Instance]:
    """Rows of a `.jsonl` file; raises AgentRLError for a damaged one, naming line and column."""
    instances = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentRLError(f"{path}: cannot be read ({error})") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            missing = [name for name in _NEEDED if name not in row]
            if missing:
                raise AgentRLError(
                    f"{path}, line {number}: lacks {', '.join(missing)}; take the rows of SWE-bench with all columns"
                )
            instances.append(_instance(row))
        except (ValueError, TypeError) as error:
            raise AgentRLError(f"{path}, line {number}: no row of an instance ({error})") from None
    repeated = len(instances) - len({instance.instance_id for instance in instances})
    if repeated or not instances:
        raise AgentRLError(f"{path}: holds {len(instances)} instances, {repeated} of them twice")
    return instances


def instance_game(instance: Instance, project: str) -> Game:
    """The task of an instance, in the split that its row names, or one by the hash of its id."""
    text = instance.problem_statement.strip()
    split = instance.split or split_by_hash(instance.instance_id)
    return Game(project, split, instance.repo, text, instance.fail_to_pass, instance=instance.instance_id)


def container_games(instances: Sequence[Instance]) -> Games:
    """Tasks of instances that run in containers; their projects name what grades them and hold no files."""
    projects, games = {}, []
    for instance in instances:
        row = json.dumps(_row(instance), sort_keys=True)
        project = Project(instance.instance_id, TextBase({"instance.json": row}), {}, instance.graded, "pytest")
        projects[project.key] = project
        games.append(instance_game(instance, project.key))
    return Games(projects, tuple(games))


def instance_of(project: Project) -> Instance | None:
    """The instance behind a project that runs in a container, or None."""
    text = project.base.read("instance.json") if isinstance(project.base, TextBase) else None
    return _instance(json.loads(text)) if text is not None and not project.hidden else None


def directory_games(instances: Sequence[Instance], beside: Path) -> Games:
    """Tasks of instances whose checkouts lie on this machine; raises AgentRLError for a missing or other checkout."""
    projects, games = {}, []
    for instance in instances:
        root = (beside / (instance.directory or "")).resolve()
        if not root.is_dir():
            raise AgentRLError(f"{instance.instance_id}: its directory {root} does not exist; check it out there")
        hidden = patched(root, instance)
        key = hashlib.sha256(f"{instance.instance_id} {instance.base_commit}".encode()).hexdigest()
        base = DirectoryBase(root, key)
        project = Project(instance.instance_id, base, hidden, instance.graded, "pytest", instance.python)
        projects[project.key] = project
        games.append(instance_game(instance, project.key))
    return Games(projects, tuple(games))


def patched(root: Path, instance: Instance) -> dict[str, str]:
    """The test files of an instance after its test patch, applied to copies; raises AgentRLError where it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in instance.test_files:
            if (root / path).is_file():
                (Path(scratch) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(scratch) / path).write_bytes((root / path).read_bytes())
        command = ["git", "apply", "--unsafe-paths", f"--directory={scratch}", "-"]
        done = subprocess.run(command, input=instance.test_patch, cwd="/", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AgentRLError(
                f"{instance.instance_id}: its test patch does not apply to {root}; check out {instance.base_commit} "
                f"there ({done.stderr.strip()[:200]})"
            )
        files = [path for path in instance.test_files if (Path(scratch) / path).is_file()]
        return {path: (Path(scratch) / path).read_text(encoding="utf-8") for path in files}


def passed_tests(log: str, repo: str) -> frozenset[str]:
    """Names of the tests that passed according to the log of a repository's test command."""
    if repo == "django/django":
        return _django(log)
    if repo == "sympy/sympy":
        lines = [line.strip() for line in log.splitlines()]
        return frozenset(line.split()[0] for line in lines if line.startswith("test_") and line.endswith(" ok"))
    status: dict[str, str] = {}
    for line in log.splitlines():
        match = _STATUS.match(_COLOUR.sub("", line))
        if match:
            status[match.group(2) or match.group(3)] = match.group(1) or match.group(4)
    return frozenset(test for test, outcome in status.items() if outcome in _GOOD)


def _django(log: str) -> frozenset[str]:
    """`test (module.Class) ... ok`; what a test prints may stand between the dots and the ok."""
    passed, current = set(), None
    for line in (line.strip() for line in log.splitlines()):
        if " ... " in line:
            current = line.split(" ... ")[0]
        if line.lower().endswith(" ... ok"):
            passed.add(line.rsplit(" ... ", 1)[0])
        elif current is not None and line.startswith("ok"):
            passed.add(current)
        if line.startswith(("FAIL:", "ERROR:")):
            passed.discard(line.partition(":")[2].strip())
    return frozenset(passed)


def _instance(row: Mapping[str, Any]) -> Instance:
    lists = [json.loads(row[name]) if isinstance(row[name], str) else row[name] for name in _NEEDED[-2:]]
    if not all(isinstance(values, list) for values in lists) or not lists[0]:
        raise ValueError("FAIL_TO_PASS and PASS_TO_PASS are lists of tests, the first of them not empty")
    values: dict[str, Any] = {name: str(row[name]) for name in _NEEDED[:5]}
    values |= {name: row.get(name) for name in _OPTIONAL}
    command = str(row.get("test_command") or _COMMANDS.get(row["repo"], _PYTEST))
    return Instance(fail_to_pass=tuple(lists[0]), pass_to_pass=tuple(lists[1]), test_command=command, **values)


def _row(instance: Instance) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(instance, name) for name in (*_NEEDED[:5], "test_command", *_OPTIONAL)}
    return row | {"FAIL_TO_PASS": list(instance.fail_to_pass), "PASS_TO_PASS": list(instance.pass_to_pass)}
