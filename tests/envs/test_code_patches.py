"""Unified diffs: what they change, and the edits that make their changes."""

from __future__ import annotations

import difflib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentbench_rl.envs.code.actions import Edit, parse
from agentbench_rl.envs.code.patches import read_patch, solving_calls
from agentbench_rl.envs.code.tree import PathError

NEW = """diff --git a/docs/new.txt b/docs/new.txt
new file mode 100644
index 0000000..5ab2f8a
--- /dev/null
+++ b/docs/new.txt
@@ -0,0 +1,2 @@
+one
+two
"""
RENAMED = """diff --git a/a.py b/b.py
similarity index 100%
rename from a.py
rename to b.py
"""
DELETED = """diff --git a/a.py b/a.py
deleted file mode 100644
--- a/a.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""
BINARY = "diff --git a/a.png b/a.png\nindex 1..2 100644\nBinary files a/a.png and b/a.png differ\n"
LINES = st.lists(st.sampled_from(["", "a", "b", "    a", "return", "====", "@@ -1 +1 @@", "--- a/x"]), max_size=25)


def diff(old: list[str], new: list[str], context: int) -> str:
    lines = difflib.unified_diff(old, new, "a/x.py", "b/x.py", n=context, lineterm="")
    return "".join(f"{line}\n" for line in ["diff --git a/x.py b/x.py", *lines])


def applied(calls: list[str], text: str) -> str:
    for call in map(parse, calls):
        if isinstance(call, Edit):
            assert text.count(call.old) == 1
            text = text.replace(call.old, call.new)
    return text


@given(LINES, LINES, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
@example(["a", "a", "a"], ["", "a", "a", ""], 0)
@example(["a", "a", "a"], ["a", ""], 0)
def test_the_edits_of_a_patch_make_its_changes(old: list[str], new: list[str], context: int) -> None:
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    calls = solving_calls(diff(old, new, context), {"x.py": before}.get)
    assert not calls or applied(calls, before) == after


def test_edits_are_found_where_the_changed_lines_repeat() -> None:
    old = ["def a():", "    return 1", "", "def b():", "    return 1", "", "def c():", "    return 1"]
    new = [*old[:4], "    return 2", *old[5:]]
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    calls = solving_calls(diff(old, new, 0), {"x.py": before}.get)
    assert [call.split()[0] for call in calls] == ["read", "edit"]
    assert applied(calls, before) == after


def test_files_are_new_deleted_or_renamed() -> None:
    changes = read_patch(NEW + RENAMED + DELETED + BINARY)
    assert [(change.source, change.target, change.deleted) for change in changes] == [
        (None, "docs/new.txt", False),
        ("a.py", "b.py", False),
        ("a.py", "a.py", True),
        ("a.png", "a.png", False),
    ]
    assert [change.hunks for change in changes[1::2]] == [(), ()]
    assert read_patch("") == []


def test_a_new_file_is_one_edit_and_what_edits_cannot_do_is_left() -> None:
    assert solving_calls(NEW, {}.get) == ["edit docs/new.txt\n<<<<\n====\none\ntwo\n>>>>"]
    for patch in (RENAMED, DELETED, BINARY, NEW + BINARY):
        assert solving_calls(patch, {"a.py": "x\n", "a.png": "", "b.py": ""}.get) == []

    def unreadable(path: str) -> str | None:
        raise PathError(f"{path}: is not a text file")

    assert solving_calls(diff(["a"], ["b"], 0), unreadable) == []
