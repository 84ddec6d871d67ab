"""A small project with a fault, for tests of code repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentbench_rl.config.environment import CodeEnvironment, CodeLimits
from agentbench_rl.envs.code.games import Fault, Game, Games, Project
from agentbench_rl.envs.code.sandbox import Sandbox
from agentbench_rl.envs.code.suite import CodeSuite
from agentbench_rl.envs.code.testing import Tester
from agentbench_rl.envs.code.tree import TextBase

SOURCE = "def double(x):\n    return x * 2\n\n\ndef first(values):\n    return values[0]\n"
TESTS = """from sums import double, first


def test_double():
    assert double(3) == 6


def test_double_negative():
    assert double(-1) == -2


def test_first():
    assert first([4, 5]) == 4


def test_first_of_one():
    assert first("x") == "x"
"""
VISIBLE = "from sums import double, first\n\n\ndef test_first():\n    assert first([4, 5]) == 4\n"
NAMES = ("test_double", "test_double_negative", "test_first", "test_first_of_one")
SOLUTION = "edit sums.py\n<<<<\nreturn x * 3\n====\nreturn x * 2\n>>>>"


def limits(**changes: int) -> CodeLimits:
    return CodeLimits(**{"test_seconds": 1, **changes})


def small_suite(isolation: Any = "none", max_turns: int = 12, **changes: int) -> CodeSuite:
    """One task: `double` multiplies by three."""
    chosen = limits(**changes)
    base = TextBase({"sums.py": SOURCE, "tests/test_sums.py": VISIBLE})
    graded = tuple(f"tests/test_sums.py::{name}" for name in NAMES)
    project = Project("sums", base, {"tests/test_sums.py": TESTS}, graded, "plain")
    at = SOURCE.index("2")
    game = Game(project.key, "train", "constant", "double is wrong", graded[:2], Fault("sums.py", at, at + 1, "3"))
    environment = CodeEnvironment(name="code", isolation=isolation, limits=chosen, max_turns=max_turns)
    tester = Tester(Sandbox(isolation, chosen))
    return CodeSuite(Games({project.key: project}, (game,)), environment, tester, ("train",))


def write_tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
