"""The tool calls of code repair: one a turn, its first word the tool.

list [PATH]                     the files of the work tree
read PATH [FIRST [LAST]]        a file, twenty lines of it from FIRST on, or those up to LAST
search TEXT                     where a text stands
edit PATH                       replace a text that stands exactly once in the file, followed by the lines
<<<<
the old text
====
the new text
>>>>
test [NAME]                     run the visible tests, or those of a file or of one function
submit                          end: the hidden tests grade
"""

from __future__ import annotations

from dataclasses import dataclass

from agentbench_rl.envs.code.tree import PathError, checked_path

TOOLS = ("list", "read", "search", "edit", "test", "submit")
_OPEN, _BETWEEN, _CLOSE = "<<<<", "====", ">>>>"
EDIT_FORM = f"edit PATH, then lines: {_OPEN}, the old text, {_BETWEEN}, the new text, {_CLOSE}"


@dataclass(frozen=True, slots=True)
class List:
    """List the files under a path ("." for all)."""

    path: str


@dataclass(frozen=True, slots=True)
class Read:
    """Show lines `first` to `last` of a file, counted from 1: all (None, None), or twenty from `first` on (None)."""

    path: str
    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Search:
    """Find a text in all files."""

    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the one occurrence of `old` by `new`; an empty `old` makes a new file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Test:
    """Run tests: all visible ones (None), of a file, or of a name."""

    __test__ = False

    name: str | None


@dataclass(frozen=True, slots=True)
class Submit:
    """End the episode."""


Action = List | Read | Search | Edit | Test | Submit


class GrammarError(ValueError):
    """An action outside the grammar; the message tells the form it should have."""


def parse(action: str) -> Action:
    """The tool call of an action; raises GrammarError, or PathError for a path outside the tree."""
    first, _, rest = action.strip().partition("\n")
    tool, _, argument = first.strip().partition(" ")
    argument = argument.strip()
    if tool == "edit":
        return _edit(argument, rest)
    if rest.strip():
        raise GrammarError(f"one tool call a turn, on one line (only edit has more): {_shown(first)}")
    match tool:
        case "list":
            return List(checked_path(argument) if argument not in ("", ".") else ".")
        case "read":
            return _read(argument)
        case "search" if argument:
            return Search(argument)
        case "test":
            return Test(argument or None)
        case "submit" if not argument:
            return Submit()
    raise GrammarError(f"not a tool call: {_shown(first)}. The tools are list, read, search, edit, test, submit.")


def edit_action(path: str, old: str, new: str) -> str:
    """The text of an edit."""
    lines = [f"edit {path}", _OPEN, *([old] if old else []), _BETWEEN, *([new] if new else []), _CLOSE]
    return "\n".join(lines)


def _read(argument: str) -> Read:
    path, *numbers = argument.split()[:4] or [""]
    if not path or len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise GrammarError("the form is: read PATH [FIRST [LAST]]")
    bounds = [int(number[:9]) for number in numbers]
    first = bounds[0] if bounds else None
    last = bounds[1] if len(bounds) == 2 else None
    if first == 0 or (first is not None and last is not None and last < first):
        raise GrammarError("read: lines are counted from 1, and LAST is not before FIRST")
    return Read(checked_path(path), first, last)


def _edit(path: str, block: str) -> Edit:
    lines = block.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not path or not lines or lines[0].rstrip() != _OPEN or lines[-1].rstrip() != _CLOSE:
        raise GrammarError(f"the form is: {EDIT_FORM}")
    marks = [index for index, line in enumerate(lines) if line.rstrip() == _BETWEEN]
    if len(marks) != 1:
        raise GrammarError(f"an edit has one line {_BETWEEN}; the form is: {EDIT_FORM}")
    old, new = lines[1 : marks[0]], lines[marks[0] + 1 : -1]
    return Edit(checked_path(path), "\n".join(old), "\n".join(new))


def _shown(line: str) -> str:
    return repr(line if len(line) <= 80 else line[:80] + "…")


__all__ = ["Action", "Edit", "GrammarError", "List", "PathError", "Read", "Search", "Submit", "Test", "parse"]
