"""Grading: equal values are right however they are written, garbage is wrong, and nothing stops the grader."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbench_rl.envs.math.grading import Grade, Grader
from agentbench_rl.envs.math.problems import Grading, Problem
from agentbench_rl.types import Ending, InfrastructureError

RIGHT, WRONG, UNREADABLE = Grade(True, True), Grade(False, True), Grade(False, False)


def problem(answer: str, grading: Grading = "math") -> Problem:
    return Problem("made-up", "?", answer, grading)


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    grader = Grader()
    yield grader
    grader.close()


@pytest.fixture
def hasty() -> Iterator[Grader]:
    """A grader that lets an answer use little time."""
    grader = Grader(deadline=0.3)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("gold", "answer", "grade"),
    [
        ("18", "18", RIGHT),
        ("18", "$18.00", RIGHT),
        ("1,000", "1000", RIGHT),
        ("10,\\!080", "10080", RIGHT),
        ("0.5", "1/2", RIGHT),
        ("18", "19", WRONG),
        ("18", "1 8", WRONG),
        ("5", "5 apples", RIGHT),
        ("5.4 \\text{ cents}", "5.4", RIGHT),
        ("90^\\circ", "90", RIGHT),
        ("50\\%", "0.5", RIGHT),
        ("\\frac{1}{2}", "\\dfrac12", RIGHT),
        ("\\frac{\\sqrt{2}}{2}", "1/\\sqrt{2}", RIGHT),
        ("x^2+2x+1", "(x+1)^2", RIGHT),
        ("x^2+2x+1", "(x+2)^2", WRONG),
        ("2", "x=2", RIGHT),
        ("2", "2 or 3", WRONG),
        ("[2,5)", "\\left[2, 5\\right)", RIGHT),
        ("[2,5)", "(2,5)", WRONG),
        ("\\{1,2\\}", "\\{2,1\\}", RIGHT),
        ("\\{1,2\\}", "\\{1,2,3\\}", WRONG),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)", RIGHT),
        ("(3, 4)", "(4, 3)", WRONG),
        ("\\text{Evelyn}", "Evelyn", RIGHT),
        ("\\text{Evelyn}", "Navin", WRONG),
        ("3", "", UNREADABLE),
        ("3", "}{", UNREADABLE),
        ("3", "\\boxed{3", UNREADABLE),
        ("3", "2}\\boxed{3", UNREADABLE),
        ("3", "\\frac{1}{" * 40, UNREADABLE),
        ("3", "9" * 100_000, UNREADABLE),
        ("3", "\x00\ud800", UNREADABLE),
        ("3", "🦆🦆🦆", UNREADABLE),
    ],
)
def test_mathematical_answers(grader: Grader, gold: str, answer: str, grade: Grade) -> None:
    assert grader.grade(problem(gold), answer) == grade


@pytest.mark.parametrize(
    ("answer", "grade"),
    [("-4", RIGHT), ("-4.0", RIGHT), ("4", WRONG), ("3 - 7", UNREADABLE), ("\\boxed{-4}", UNREADABLE)],
)
def test_generated_numbers_are_graded_without_the_process(answer: str, grade: Grade) -> None:
    grader = Grader()
    assert grader.grade(problem("-4", "number"), answer) == grade
    assert grader._process is None


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("(10-8)*5", RIGHT),
        ("5*(10 - 8)", RIGHT),
        ("10", WRONG),
        ("5*10/5*8/8", WRONG),
        ("10-8/0*5", WRONG),
        ("__import__('os')", UNREADABLE),
    ],
)
def test_countdown_takes_any_expression_of_the_numbers_and_the_target(answer: str, grade: Grade) -> None:
    assert Grader().grade(problem("5*(10-8)", "countdown"), answer) == grade


def test_texts_are_compared_without_case_and_white_space() -> None:
    assert Grader().grade(problem("Ann is a Knight.", "text"), " ann is a knight") == RIGHT
    assert Grader().grade(problem("Ann is a Knight.", "text"), "Ann is a knave.") == WRONG


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "\\sum_{k=1}^{10^{9}} k^{k}"])
def test_an_answer_that_never_ends_is_wrong_and_the_next_one_is_graded(hasty: Grader, answer: str) -> None:
    hasty.compare("1", "2")
    start = time.process_time()
    assert hasty.grade(problem("2"), answer) == UNREADABLE
    assert time.process_time() - start < 1
    assert hasty._process is None, "the process that hung is gone"
    assert hasty.grade(problem("7x"), "x \\cdot 7") == RIGHT


def test_a_known_answer_that_never_ends_is_a_fault_of_the_grader(hasty: Grader) -> None:
    with pytest.raises(InfrastructureError, match="9\\^\\{9") as fault:
        hasty.grade(problem("9^{9^{9^{9}}}"), "2+x")
    assert fault.value.ending is Ending.GRADER_ERROR
    assert hasty.grade(problem("7x"), "x \\cdot 7") == RIGHT


def test_a_process_that_is_killed_from_outside_is_a_fault_and_replaced() -> None:
    grader = Grader()
    grader.compare("1", "2")
    assert grader._process is not None
    os.kill(grader._process.pid, signal.SIGKILL)
    grader._process.wait()
    with pytest.raises(InfrastructureError) as fault:
        grader.compare("1", "3")
    assert fault.value.ending is Ending.GRADER_ERROR
    assert grader.compare("1", "x-x+1") == RIGHT
    grader.close()


def test_a_process_that_does_not_answer_is_a_fault_in_the_end() -> None:
    grader = Grader(patience=60)
    grader.compare("1", "2")
    assert grader._process is not None
    grader._patience = 0.2
    os.kill(grader._process.pid, signal.SIGSTOP)
    with pytest.raises(InfrastructureError) as fault:
        grader.compare("1", "3")
    assert fault.value.ending is Ending.GRADER_ERROR
    assert grader._process is None


def test_answers_execute_nothing(grader: Grader, tmp_path: Path) -> None:
    target = tmp_path / "written"
    for answer in (f'__import__("os").system("touch {target}")', f"\\text{{open('{target}', 'w')}}"):
        assert not grader.grade(problem("2"), answer).correct
    assert not target.exists()


def test_a_known_number_that_is_none_is_a_fault_of_the_grader() -> None:
    with pytest.raises(InfrastructureError, match="is no number"):
        Grader().grade(problem("many", "number"), "3")
