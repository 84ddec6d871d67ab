"""Test runs over work trees, and their results by test; equal trees are run once."""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentbench_rl.envs.code.sandbox import Sandbox
from agentbench_rl.envs.code.tree import Tree, content_hash

Framework = Literal["plain", "pytest"]
_KEPT_RUNS = 4096
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
#: Wall seconds of a test per CPU second that it may use: a test that sleeps ends too.
_WALL_PER_CPU = 5


@dataclass(frozen=True, slots=True)
class TestResult:
    """Outcome of one test; for a failure the failing call, what it should give and what it gave."""

    __test__ = False

    test: str
    passed: bool
    call: str = ""
    expected: str | None = None
    got: str = ""
    steps: tuple[str, ...] = ()
    output: str = ""


@dataclass(frozen=True, slots=True)
class TestRun:
    """Results of a run in the order of the tests, and whether it was cut at a limit of time or output."""

    __test__ = False

    results: tuple[TestResult, ...]
    late: bool
    cut: bool

    @property
    def passed(self) -> frozenset[str]:
        """Names of the tests that passed."""
        failed = {result.test for result in self.results if not result.passed}
        return frozenset(result.test for result in self.results if result.passed) - failed


class Tester:
    """Runs tests in a sandbox and remembers the results of the trees it saw."""

    __test__ = False

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._runs: OrderedDict[str, TestRun] = OrderedDict()

    def run(
        self, tree: Tree, tests: Mapping[str, tuple[str, ...]], framework: Framework, python: str | None = None
    ) -> TestRun:
        """Results of `tests` (file → names, empty: all of the file) in `tree`; InfrastructureError when none can run.

        What the tests do to the tree does not last.
        """
        return self.run_each([tree], tests, framework, python)[0]

    def run_each(
        self,
        trees: Sequence[Tree],
        tests: Mapping[str, tuple[str, ...]],
        framework: Framework,
        python: str | None = None,
        cpu_seconds: float | None = None,
        memory_mb: int | None = None,
    ) -> list[TestRun]:
        """The same as `run` for several trees over one base, in one start of the sandbox.

        cpu_seconds, memory_mb: of a test (None: as the limits say).
        """
        cpu_seconds = cpu_seconds or self.sandbox.limits.test_seconds
        memory_mb = memory_mb or self.sandbox.limits.memory_mb
        how = json.dumps([tests, framework, python, cpu_seconds, memory_mb])
        keys = [content_hash({"tree": tree.key, "how": how}) for tree in trees]
        missing = {key: tree for key, tree in zip(keys, trees, strict=True) if key not in self._runs}
        runs = {key: self._runs[key] for key in keys if key in self._runs}
        if missing:
            found = self._execute(list(missing.values()), tests, framework, python, cpu_seconds, memory_mb)
            runs |= dict(zip(missing, found, strict=True))
        for key in keys:
            self._runs[key] = runs[key]
            self._runs.move_to_end(key)
        while len(self._runs) > _KEPT_RUNS:
            self._runs.popitem(last=False)
        return [runs[key] for key in keys]

    def _execute(
        self,
        trees: Sequence[Tree],
        tests: Mapping[str, tuple[str, ...]],
        framework: Framework,
        python: str | None,
        cpu_seconds: float,
        memory_mb: int,
    ) -> list[TestRun]:
        first = trees[0].changes
        common = {p: text for p, text in first.items() if all(tree.changes.get(p) == text for tree in trees)}
        variants = [{p: text for p, text in tree.changes.items() if p not in common} for tree in trees]
        limits = self.sandbox.limits
        token = secrets.token_hex(16)
        request = {
            "token": token,
            "tests": tests,
            "framework": framework,
            "variants": variants,
            "cpu_seconds": cpu_seconds,
            "wall_seconds": limits.test_seconds * _WALL_PER_CPU,
            "run_seconds": limits.run_seconds,
            "output_bytes": limits.output_kb << 10,
            "memory_mb": memory_mb,
            "processes": limits.processes if self.sandbox.isolated else None,
        }
        finished = self.sandbox.run(
            Tree(trees[0].base, common), json.dumps(request), python, site=framework == "pytest", runs=len(trees)
        )
        rows: list[list[TestResult]] = [[] for _ in trees]
        complete = set()
        # The last line is empty, or was cut; what else lacks the token was written by the tests.
        for line in finished.output.split("\n")[:-1]:
            if not line.startswith(f"{token} "):
                continue
            row = json.loads(line.removeprefix(token))
            if "done" in row:
                complete.add(row["variant"])
            else:
                rows[row["variant"]].append(_result(row))
        return [
            TestRun(tuple(results), finished.late and number not in complete, finished.cut and number not in complete)
            for number, results in enumerate(rows)
        ]


def _result(row: dict[str, Any]) -> TestResult:
    texts = {key: _ADDRESS.sub("0x…", row[key]) for key in ("call", "got", "output") if key in row}
    expected = row.get("expected")
    return TestResult(
        row["test"],
        row["passed"],
        expected=_ADDRESS.sub("0x…", expected) if expected else None,
        steps=tuple(row.get("steps", ())),
        **texts,
    )
