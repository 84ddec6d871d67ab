"""The report of a fault: what was called, what should have come and what came; nothing of it is read off the fault."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from agentbench_rl.envs.code.testing import TestResult

_EXAMPLES = 2


def issue_text(project: str, failures: Sequence[TestResult]) -> str:
    """A report of up to two failing calls."""
    told = "\n\n".join(_example(failure) for failure in failures[:_EXAMPLES])
    return f"{project} does not do what it should.\n\n{told}"


def _example(failure: TestResult) -> str:
    lines = [f">>> {line}" for step in failure.steps for line in step.splitlines()]
    call, expected, got = _caught(failure)
    lines.append(f">>> {call}")
    if expected is not None:
        lines.append(f"expected: {expected}")
    lines.append(f"got: {got}")
    return "\n".join(lines)


def _caught(failure: TestResult) -> tuple[str, str | None, str]:
    """(call, expected, got); of a test that catches an exception's name, the call that should or should not raise."""
    try:
        node = ast.parse(failure.call, mode="eval").body
    except SyntaxError:
        return failure.call, failure.expected, failure.got
    match node:
        case ast.Call(func=ast.Name(id="error"), args=[called, *arguments]):
            shown = ", ".join(ast.unparse(argument) for argument in arguments)
            call = f"{ast.unparse(called)}({shown})"
            return call, _raises(failure.expected or "None"), _raises(failure.got)
    return failure.call, failure.expected, failure.got


def _raises(value: str) -> str:
    return "no error" if value == "None" else f"raises {value.strip(chr(39))}"
