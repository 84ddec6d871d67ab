"""Runs tests inside the sandbox: a script of the standard library alone, which imports no other module here.

Its standard input is one JSON object: `tests` (file → names of test functions, empty: all), `framework` (plain |
pytest), `variants` (one run each: texts that replace files of the tree), the limits `cpu_seconds`, `wall_seconds`,
`memory_mb`, `output_bytes` of a test, `run_seconds`, `processes` of a run, and a `token`. Its standard output is one
JSON object a line, behind the token, for each finished test: `variant`, `test`, `passed`, and for a failure `call`,
`expected`, `got`, `steps`, `output`; and one with `done` at the end of each variant.
The tests' own output goes elsewhere, and what they write to open files lacks the token, so that it does not look like a
result. Of a plain test file every test runs in a process of its own: neither an endless loop nor exhausted memory
reaches the next test.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from typing import Any

_KEPT_OUTPUT = 2000
_KEPT_REPR = 300
#: What is told of a test that runs into its time limit; the rest of its file is not run.
ENDLESS = "does not end (time limit)"
_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL, signal.SIGPROF)


class MismatchError(AssertionError):
    """An `assert LEFT == RIGHT` that did not hold; args: text of LEFT, repr of RIGHT, repr of LEFT."""


def main() -> None:
    """Read the request, run, and write results."""
    request = json.loads(sys.stdin.read())
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    here = os.getcwd()  # noqa: PTH109
    sys.path[:0] = [here, f"{here}/src"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = request["memory_mb"] << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (memory, memory))
    if request["processes"] is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (request["processes"], request["processes"]))
    if request["framework"] == "pytest":
        import pytest  # noqa: F401  (once, before the forks)
    for number, files in enumerate(request["variants"]):
        before = {path: read(path) if os.path.exists(path) else None for path in files}  # noqa: PTH110
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                write_files(files)
                run_variant(request, _Results(results, number, request["token"]))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        write_files(before)
        rest = _Results(results, number, request["token"])
        if os.WIFSIGNALED(status):
            got = ENDLESS if os.WTERMSIG(status) in _OUT_OF_TIME else "the process ended before the tests did"
            rest.write({"test": "run", "passed": False, "call": "all tests", "got": got})
        rest.write({"done": True})


class _Results:
    """Writes results of one variant."""

    def __init__(self, file: Any, variant: int, token: str) -> None:
        self.file, self.token, self._variant = file, token, variant

    def write(self, row: dict[str, Any]) -> None:
        self.file.write(f"{self.token} {json.dumps({'variant': self._variant, **row})}\n")
        self.file.flush()


def write_files(files: dict[str, str | None]) -> None:
    """Write the texts; None removes a file."""
    for path, text in files.items():
        if text is None:
            with contextlib.suppress(OSError):
                os.remove(path)  # noqa: PTH107
            continue
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:  # noqa: PTH123
            file.write(text)


def run_variant(request: dict[str, Any], results: _Results) -> None:
    """Run all files of a request over the tree as it is."""
    if request["framework"] == "pytest":
        run_pytest(request, results)
        return
    for path, names in request["tests"].items():
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                run_file(path, names, request, results)
            os._exit(0)
        killed = os.wait()[1]
        if os.WIFSIGNALED(killed):
            got = ENDLESS if os.WTERMSIG(killed) in _OUT_OF_TIME else "the process ended before the tests did"
            results.write({"test": path, "passed": False, "call": f"import of {path}", "got": got})


def run_file(path: str, names: list[str], request: dict[str, Any], results: _Results) -> None:
    """Import a plain test file once, then run each test in a fork."""
    _limit_cpu(request["cpu_seconds"] + 1)
    source = read(path)
    try:
        tree = ast.parse(source)
        found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"]
        namespace = load(path, source)
    except BaseException as error:
        results.write({"test": path, "passed": False, "got": describe(error), "call": f"import of {path}"})
        return
    for name in names or found:
        if name in found:
            outcome = run_in_fork(path, name, tree, namespace[name], request, results)
            results.write({"test": f"{path}::{name}", **outcome})
            if outcome.get("got") == ENDLESS:
                break


def run_in_fork(
    path: str, name: str, tree: ast.Module, test: Any, request: dict[str, Any], results: _Results
) -> dict[str, Any]:
    """Outcome of one test; what kills the process is a failure of the test."""
    result_read, result_write = os.pipe()
    output_read, output_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(results.file.fileno())
        for descriptor in (1, 2):
            os.dup2(output_write, descriptor)
        _limit_cpu(request["cpu_seconds"])
        outcome = call_test(path, name, tree, test)
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os.write(result_write, f"{results.token} {json.dumps(outcome)}\n".encode())
        os._exit(0)
    os.close(result_write)
    os.close(output_write)
    result, output, stopped = collect(result_read, output_read, request["wall_seconds"], request["output_bytes"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(result_read)
    os.close(output_read)
    token, _, told = result.partition(b"\n")[0].partition(b" ")
    if token == results.token.encode():
        return {**json.loads(told), "output": output.decode("utf-8", "replace")}
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _OUT_OF_TIME
    why = stopped or (ENDLESS if killed else "the process ended before the test did")
    return {"passed": False, "got": why, "call": name, "output": output.decode("utf-8", "replace")}


def collect(result: int, output: int, wall_seconds: float, output_bytes: int) -> tuple[bytes, bytes, str]:
    """(result, first part of the output, which limit was hit) of a test's process."""
    deadline = time.monotonic() + wall_seconds
    kept, answer, open_, printed = b"", b"", {result, output}, 0
    while result in open_:
        ready, _, _ = select.select(sorted(open_), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b"", kept, ENDLESS
        for descriptor in ready:
            data = os.read(descriptor, 1 << 16)
            if not data:
                open_.discard(descriptor)
            elif descriptor == result:
                answer += data
            else:
                kept = (kept + data)[:_KEPT_OUTPUT]
                printed += len(data)
        if printed > output_bytes:
            return b"", kept, "prints too much (output limit)"
        if time.monotonic() > deadline and not answer:
            return b"", kept, ENDLESS
    return answer, kept, ""


def call_test(path: str, name: str, tree: ast.Module, test: Any) -> dict[str, Any]:
    """Outcome of a test function; `tree` is its file as it was written."""
    try:
        test()
    except BaseException as error:
        return {"passed": False, **explain(error, path, name, tree)}
    return {"passed": True}


def read(path: str) -> str:
    """Text of a file; without pathlib, whose import takes as long as the start of the interpreter."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def load(path: str, source: str) -> dict[str, Any]:
    """Execute a test file; returns its names. What it imports stays imported."""
    namespace: dict[str, Any] = {"__name__": "tests", "__file__": path, "_MismatchError": MismatchError}
    exec(compile(instrumented(ast.parse(source)), path, "exec"), namespace)
    return namespace


class _Instrument(ast.NodeTransformer):
    """`assert LEFT == RIGHT` raises a MismatchError that tells both values, each evaluated once."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        test = node.test
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
            return node
        text = repr(ast.unparse(test.left))
        new = ast.parse(
            f"_left, _right = 0, 0\nif not (_left == _right): raise _MismatchError({text}, repr(_right), repr(_left))"
        ).body
        assign = new[0]
        assert isinstance(assign, ast.Assign)
        assign.value = ast.Tuple([test.left, test.comparators[0]], ast.Load())
        for statement in new:
            for part in ast.walk(statement):
                ast.copy_location(part, node)
        return new


def instrumented(tree: ast.Module) -> ast.Module:
    """The syntax tree of a test file with its asserts made to tell what they saw."""
    return ast.fix_missing_locations(_Instrument().visit(tree))  # type: ignore[no-any-return]


def explain(error: BaseException, path: str, name: str, tree: ast.Module) -> dict[str, Any]:
    """The failing call, what was expected and what came, and the test's statements before it."""
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    body = next((n.body for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), [])
    line = lines[0] if lines else 0
    at = next((i for i, s in enumerate(body) if s.lineno <= line <= (s.end_lineno or 0)), 0)
    failing = body[at] if body else None
    facts: dict[str, Any] = {"steps": [as_step(statement) for statement in body[:at]]}
    if isinstance(error, MismatchError):
        call, expected, got = error.args
        return {**facts, "call": call, "expected": short(expected), "got": short(got)}
    if isinstance(failing, ast.Assert):
        test = failing.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            facts |= {"call": ast.unparse(test.left), "expected": short(ast.unparse(test.comparators[0]))}
        else:
            facts |= {"call": ast.unparse(test), "expected": "True"}
        return {**facts, "got": "False" if isinstance(error, AssertionError) else f"raises {describe(error)}"}
    return {
        **facts,
        "call": ast.unparse(failing).splitlines()[0] if failing else name,
        "got": f"raises {describe(error)}",
    }


def as_step(statement: ast.stmt) -> str:
    """A statement as a user would type it: of an assertion, the call that it checks."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        return short(ast.unparse(test.left if isinstance(test, ast.Compare) else test))
    return short(ast.unparse(statement))


def describe(error: BaseException) -> str:
    """Type and message of an exception, shortened."""
    return short(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def short(text: str) -> str:
    """At most `_KEPT_REPR` characters."""
    return text if len(text) <= _KEPT_REPR else text[:_KEPT_REPR] + "…"


def run_pytest(request: dict[str, Any], results: _Results) -> None:
    """Run files under pytest in this process; a test's outcome is that of its set-up, call and tear-down together."""
    _limit_cpu(request["run_seconds"])
    import pytest

    class Reporter:
        """Writes one row per test, and gives each its CPU time."""

        def pytest_runtest_logstart(self) -> None:
            signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])

        def pytest_runtest_logreport(self, report: Any) -> None:
            failed = report.failed
            # What fails as it is expected to counts as passed, and what then passes does not.
            if failed or (report.when == "call" and report.passed != hasattr(report, "wasxfail")):
                row = {"test": report.nodeid, "passed": not failed, "call": "", "got": ""}
                if failed:
                    crash = getattr(report.longrepr, "reprcrash", None)
                    # The first marked line is the test's; later ones would show the library's inside.
                    shown = [line[1:].strip() for line in str(report.longrepr).splitlines() if line[:1] == ">"]
                    row |= {"call": shown[0] if shown else report.nodeid, "got": short(crash.message if crash else "")}
                results.write(row)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                lines = str(report.longrepr).splitlines() or [""]
                row = {"test": report.nodeid, "passed": False, "call": f"import of {report.nodeid}"}
                results.write(row | {"got": short(lines[-1])})

    names = [f"{path}::{name}" for path, tests in request["tests"].items() for name in tests]
    names += [path for path, tests in request["tests"].items() if not tests]
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", ".", "--tb=long", *names], plugins=[Reporter()])


def _limit_cpu(seconds: float) -> None:
    """Allow this process so many seconds of CPU from now on: by a timer, and by a limit that cannot be lifted."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


if __name__ == "__main__":
    main()
