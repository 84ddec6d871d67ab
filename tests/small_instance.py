"""A repository with a fault, and the row of its instance in the columns of SWE-bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

VISIBLE = "from sums import double, first\n\n\ndef test_first():\n    assert first([4, 5]) == 4\n"
FAULTY = "def double(x):\n    return x * 3\n\n\ndef first(values):\n    return values[0]\n"
SOLUTION = "edit sums.py\n<<<<\nx * 3\n====\nx * 2\n>>>>"
GOLD = """diff --git a/sums.py b/sums.py
--- a/sums.py
+++ b/sums.py
@@ -1,4 +1,4 @@
 def double(x):
-    return x * 3
+    return x * 2
 
 
"""
TEST_PATCH = """diff --git a/tests/test_sums.py b/tests/test_sums.py
--- a/tests/test_sums.py
+++ b/tests/test_sums.py
@@ -3,3 +3,7 @@

 def test_first():
     assert first([4, 5]) == 4
+
+
+def test_double():
+    assert double(3) == 6
"""


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def row(commit: str, **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "Sums__sums-1",
        "repo": "sums/sums",
        "base_commit": commit,
        "problem_statement": "double(3) gives 9",
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": json.dumps(["tests/test_sums.py::test_double"]),
        "PASS_TO_PASS": ["tests/test_sums.py::test_first"],
        "test_command": f"PYTHONPATH=. {sys.executable} -B -S run_tests.py",
        "split": "test",
        **changes,
    }
