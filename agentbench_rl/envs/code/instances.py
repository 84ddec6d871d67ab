"""Instances in the columns of SWE-bench: what grades them, and how they are tested.

A row has `instance_id`, `repo`, `base_commit`, `problem_statement`, `test_patch`, `FAIL_TO_PASS` and `PASS_TO_PASS`
(lists, or lists written as JSON). Optional: `patch` (the repair, which the expert makes), `version` of the repository,
`test_command` (what runs the tests; files are appended), `image`, `split`, and for an instance that needs no container
`directory` (a checkout of `base_commit`, relative to the file of rows) and `python` (an interpreter in whose
environment the tests run under pytest).

Commands and log formats are those of the harness of SWE-bench (https://github.com/SWE-bench/SWE-bench).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_rl.envs.code.games import Game, Games, Project, split_by_hash
from agentbench_rl.envs.code.logs import row_name
from agentbench_rl.envs.code.patches import read_patch
from agentbench_rl.envs.code.tree import DirectoryBase, TextBase, checked_path
from agentbench_rl.types import AgentRLError

_PYTEST = "pytest -rA"
_DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
_ENGLISH = "export LANG=en_US.UTF-8 LC_ALL=en_US.UTF-8 LANGUAGE=en_US:en PYTHONIOENCODING=utf8"
#: Test commands of the repositories that do not use pytest alone.
_COMMANDS: Mapping[str, str] = {
    "django/django": _DJANGO,
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    "mwaskom/seaborn": "pytest --no-header -rA",
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no",
}
_DJANGO_TEST = re.compile(r"(^|/)(tests\.py$|test_)|/tests/")
_NEEDED = ("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
_OPTIONAL = ("patch", "image", "directory", "python", "split")
#: Files of a test patch that no test command takes.
_NO_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")


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
    patch: str | None
    image: str | None
    directory: str | None
    python: str | None
    split: str | None

    @property
    def test_files(self) -> list[str]:
        """Files that the test patch changes or adds, in its order."""
        return [change.target for change in read_patch(self.test_patch)]

    @property
    def test_sources(self) -> tuple[list[str], list[str]]:
        """Files of the base commit that the test patch changes, and files that it adds."""
        changes = read_patch(self.test_patch)
        changed = [change.source for change in changes if change.source is not None]
        return changed, [change.target for change in changes if change.target not in changed]

    @property
    def directives(self) -> list[str]:
        """The test files that the test command is given."""
        files = [path for path in self.test_files if not path.endswith(_NO_TESTS)]
        return [path for path in files if not self._is_django or _DJANGO_TEST.search(path)]

    def test_line(self, names: Sequence[str]) -> str:
        """The command that runs test files, which Django is given as labels of modules."""
        if self._is_django:
            names = [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in names]
        return f"{self.test_command} {' '.join(map(shlex.quote, names))}"

    @property
    def _is_django(self) -> bool:
        return self.repo == "django/django"

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
        base = TextBase({"instance.json": row})
        project = Project(instance.instance_id, base, {}, instance.graded, "pytest", patch=instance.patch)
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
        _check_commit(root, instance)
        hidden = patched(root, instance)
        key = hashlib.sha256(f"{instance.instance_id} {instance.base_commit}".encode()).hexdigest()
        base = DirectoryBase(root, key)
        graded, python = instance.graded, instance.python
        project = Project(instance.instance_id, base, hidden, graded, "pytest", python, instance.patch)
        projects[project.key] = project
        games.append(instance_game(instance, project.key))
    return Games(projects, tuple(games))


def _check_commit(root: Path, instance: Instance) -> None:
    """Raise AgentRLError where a repository's files are not those of the base commit."""
    if not (root / ".git").exists():
        return
    command = ["git", "-c", f"safe.directory={root}", "diff", "--stat", instance.base_commit, "--"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stdout:
        found = (done.stderr.strip() or done.stdout.strip().splitlines()[-1])[:200]
        raise AgentRLError(
            f"{instance.instance_id}: {root} differs from {instance.base_commit} ({found}); check that commit out there"
        )


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


def _instance(row: Mapping[str, Any]) -> Instance:
    values: dict[str, Any] = {name: str(row[name]) for name in _NEEDED[:5]}
    lists = [_tests(row[name], values["repo"]) for name in _NEEDED[-2:]]
    if not lists[0]:
        raise ValueError("FAIL_TO_PASS names no test")
    for change in read_patch(values["test_patch"]):
        for path in (change.source or change.target, change.target):
            checked_path(path)
    values |= {name: row.get(name) for name in _OPTIONAL}
    command = str(row.get("test_command") or _command(values["repo"], str(row.get("version", ""))))
    return Instance(fail_to_pass=lists[0], pass_to_pass=lists[1], test_command=command, **values)


def _tests(names: object, repo: str) -> tuple[str, ...]:
    """Tests of a row as logs are read, each once; a list, or one written as JSON."""
    tests = json.loads(names) if isinstance(names, str) else names
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise ValueError("FAIL_TO_PASS and PASS_TO_PASS are lists of tests")
    return tuple(dict.fromkeys(test if repo == "django/django" else row_name(test, repo) for test in tests))


def _command(repo: str, version: str) -> str:
    """The test command of a version: old ones of Django run what is installed, under English settings."""
    if repo == "django/django" and version.startswith(("1.", "2.")):
        command = "./tests/runtests.py --verbosity 2" if version == "1.9" else _DJANGO
        return f"python setup.py install >/dev/null 2>&1; {_ENGLISH}; {command}"
    if repo == "django/django" and version.startswith("3."):
        locale = "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen >/dev/null"
        return f"{locale}; {_ENGLISH}; {_DJANGO}"
    return _COMMANDS.get(repo, _PYTEST)


def _row(instance: Instance) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(instance, name) for name in (*_NEEDED[:5], "test_command", "image")}
    return row | {"FAIL_TO_PASS": list(instance.fail_to_pass), "PASS_TO_PASS": list(instance.pass_to_pass)}
