"""Unified diffs as `git diff` writes them: which files they change, and the edits that make their changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentbench_rl.envs.code.actions import Edit, GrammarError, edit_action, parse
from agentbench_rl.envs.code.tree import PathError

_SECTION = re.compile(r"^diff --git a/(.*) b/(.*)$", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@.*$", re.MULTILINE)
#: Lines of a file that the expert reads before the lines that it changes.
_BEFORE = 5


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that replace others from line `first` on, counted from 1, context included."""

    first: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """Changes of a file. source: what it was called, None for a new one; target: what it is called now."""

    source: str | None
    target: str
    deleted: bool
    hunks: tuple[Hunk, ...]


def read_patch(patch: str) -> list[FileChange]:
    """The files of a patch, in its order; binary ones have no hunks."""
    sections = list(_SECTION.finditer(patch))
    return [_file(section, text) for section, text in _parts(sections, patch)]


def solving_calls(patch: str, read: Callable[[str], str | None]) -> list[str]:
    """Tool calls that read and make the changes of a patch, over the files that `read` gives.

    Empty where edits cannot make them: files deleted, renamed, binary or not in UTF-8, texts that look like an
    edit's marks.
    """
    calls: list[str] = []
    for change in read_patch(patch):
        if change.source is None and len(change.hunks) == 1:
            calls.append(edit_action(change.target, "", "\n".join(change.hunks[0].new)))
            continue
        try:
            text = read(change.target)
        except PathError:
            return []
        if text is None or change.deleted or change.source != change.target or not change.hunks:
            return []
        lines = text.split("\n")
        # From the last to the first, so that the lines before keep their numbers.
        for hunk in reversed(change.hunks):
            begin = hunk.first - 1 if hunk.old else hunk.first
            edit = _edit(change.target, lines, hunk, begin)
            if edit is None:
                return []
            calls += [f"read {change.target} {max(1, begin + 1 - _BEFORE)} {begin + 1 + len(hunk.old)}", edit]
            lines[begin : begin + len(hunk.old)] = hunk.new
    return calls if all(map(_is_call, calls)) else []


def stands_once(text: str, old: str, place: int) -> bool:
    """Whether a text is at `place` and nowhere else, not even where it would overlap itself."""
    return text.find(old) == place and text.find(old, place + 1) < 0


def _file(section: re.Match[str], body: str) -> FileChange:
    header = body[: body.find("\n@@")] if "\n@@" in body else body
    parts = [_hunk(hunk, text[1:]) for hunk, text in _parts(list(_HUNK.finditer(body)), body)]
    source = None if "\nnew file mode" in header else section[1]
    return FileChange(source, section[2], "\ndeleted file mode" in header, tuple(parts))


def _parts(heads: Sequence[re.Match[str]], text: str) -> list[tuple[re.Match[str], str]]:
    """Each head with the text up to the next one."""
    ends = [*(head.start() for head in heads), len(text)][1:]
    return [(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _hunk(head: re.Match[str], body: str) -> Hunk:
    counts = [1 if count is None else int(count) for count in (head[2], head[3])]
    # An editor may have taken the space of an empty line away.
    marked = [(line[:1] or " ", line[1:]) for line in body.split("\n")]
    old, new = ([line for mark, line in marked if mark in (" ", sign)] for sign in "-+")
    return Hunk(int(head[1]), tuple(old[: counts[0]]), tuple(new[: counts[1]]))


def _edit(path: str, lines: Sequence[str], hunk: Hunk, begin: int) -> str | None:
    """The edit of a hunk, with as many lines around it as make its text stand once in the file."""
    end = begin + len(hunk.old)
    if tuple(lines[begin:end]) != hunk.old:
        return None
    text = "\n".join(lines)
    for width in range(len(lines) + 1):
        low, high = max(0, begin - width), min(len(lines), end + width)
        old, new = lines[low:high], [*lines[low:begin], *hunk.new, *lines[end:high]]
        place = sum(len(line) + 1 for line in lines[:low])
        if new and any(old) and stands_once(text, "\n".join(old), place):
            return edit_action(path, "\n".join(old), "\n".join(new))
    return None


def _is_call(call: str) -> bool:
    try:
        parsed = parse(call)
    except (GrammarError, PathError):
        return False
    return not isinstance(parsed, Edit) or edit_action(parsed.path, parsed.old, parsed.new) == call
