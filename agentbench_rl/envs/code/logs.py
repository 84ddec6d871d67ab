"""Which tests passed, by the log of a repository's test command; formats as the harness of SWE-bench reads them."""

from __future__ import annotations

import re

_STATUS = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) +(\S+)|^(\S+) +(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
#: What counts as passed.
_GOOD = frozenset({"PASSED", "XFAIL"})
#: Repositories where a parameter that is a path counts by its last part.
_SHORT_PATHS = ("psf/requests", "pylint-dev/pylint", "pydicom/pydicom")
_PATH = re.compile(r"^(.*?)\[/(?!/)[^*]*?([^/*]*)\]$")
#: What Python 3.11 and later calls these members of an enumeration.
_BUTTONS = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}


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
            status[row_name(match.group(2) or match.group(3), repo)] = match.group(1) or match.group(4)
    return frozenset(test for test, outcome in status.items() if outcome in _GOOD)


def row_name(test: str, repo: str) -> str:
    """A test as the rows of its repository name it: up to the first space, as logs are read."""
    test = test.split(" ")[0]
    if repo in _SHORT_PATHS:
        return _PATH.sub(r"\1[/\2]", test)
    if repo == "matplotlib/matplotlib":
        for member, value in _BUTTONS.items():
            test = test.replace(member, value)
    return test


def _django(log: str) -> frozenset[str]:
    """`test (module.Class) ... ok`; what a test prints may stand between the dots and the ok."""
    passed, current = set(), None
    for line in (line.strip() for line in log.splitlines()):
        if " ... " in line:
            current = line.split(" ... ")[0]
        if line.lower().endswith((" ... ok", " ...  ok")):
            passed.add(line.rsplit(" ... ", 1)[0])
        elif current is not None and line.startswith("ok"):
            passed.add(current)
        if line.startswith(("FAIL:", "ERROR:")):
            passed.discard(line.partition(":")[2].strip())
    return frozenset(passed)
