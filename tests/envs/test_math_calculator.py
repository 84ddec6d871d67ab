"""The calculator executes nothing and bounds everything; the grammar takes what is written in it and nothing else."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentbench_rl.envs.math.calculator import (
    MAX_BITS,
    CalculatorError,
    MalformedExpressionError,
    display,
    evaluate,
    has_operation,
    steps,
)
from agentbench_rl.envs.math.grammar import (
    Answer,
    Calculation,
    parse_answer,
    parse_boxed,
    parse_number,
    parse_turn,
    parse_verdict,
)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*7", "84"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("7 / 2", "3.5"),
        ("1 / 3", "1/3"),
        ("1 / 3 * 3", "1"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 % 3", "1"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("-3 + 1", "-2"),
        ("0.1 + 0.2", "0.3"),
        ("-1 / 8", "-0.125"),
        (".5 * 4.", "2"),
    ],
)
def test_values_are_exact(expression: str, value: str) -> None:
    assert display(evaluate(expression)) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "().__class__",
        "(1).real",
        "abs(1)",
        "x + 1",
        "1 if 1 else 2",
        "[1][0]",
        "(1, 2)",
        "1 < 2",
        "1e5",
        "0x10",
        "1_000",
        "1j",
        "True",
        "1 and 2",
        "~1",
        "1 @ 2",
        "1 << 3",
        "f'{1}'",
        "1 +",
        "",
        " ",
        "()",
        "(1)(2)",
        "1 2",
        "1,000",
        "１ + ２",
        "2\n+ 2",
        "(" * 90 + "1" + ")" * 90 + "+" * 90,
        "1" * 201,
        "1 + " * 30_000 + "1",
    ],
)
def test_what_is_no_arithmetic_is_malformed(expression: str) -> None:
    with pytest.raises(MalformedExpressionError):
        evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("10 ** 1000", "too large"),
        ("2 ** -100000", "too large"),
        ("(2 ** 500) * (2 ** 500)", "too large"),
        ("9" * 199, "too large"),
        ("2 ** 0.5", "whole number"),
    ],
)
def test_what_has_no_value_is_told_at_once(expression: str, reason: str) -> None:
    start = time.process_time()
    with pytest.raises(CalculatorError, match=reason):
        evaluate(expression)
    assert time.process_time() - start < 0.5


@given(st.text(alphabet="0123456789+-*/%(). ", max_size=40))
@example("9**9**9")
@settings(max_examples=50, deadline=None)
def test_any_text_of_the_alphabet_gives_a_bounded_value_or_a_clear_refusal(expression: str) -> None:
    try:
        value = evaluate(expression)
    except (MalformedExpressionError, CalculatorError):
        return
    assert isinstance(value, Fraction)
    assert value.numerator.bit_length() <= MAX_BITS


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("4 * 3 - 2", ["4 * 3", "12 - 2"]),
        ("2 - (3 + 4)", ["3 + 4", "2 - 7"]),
        ("1 - 5 + 2", ["1 - 5", "(-4) + 2"]),
        ("1 / 3 * 3", ["1 / 3", "(1/3) * 3"]),
        ("7", []),
    ],
)
def test_steps_are_single_operations_in_order(expression: str, expected: list[str]) -> None:
    assert steps(expression) == expected
    assert not expected or evaluate(expected[-1]) == evaluate(expression)


def test_repeating_a_number_is_no_operation() -> None:
    assert not has_operation("(-7)")
    assert has_operation("7 + 0")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("1,234.50", Fraction("1234.5")),
        ("$18", 18),
        ("7/8", Fraction(7, 8)),
        ("007", 7),
        (".5", Fraction(1, 2)),
        (" 5 ", 5),
        ("12,34", None),
        ("1,2345", None),
        ("", None),
        ("-", None),
        ("1/0", None),
        ("1.5/2", None),
        ("1e3", None),
        ("nan", None),
        ("٣", None),
        ("5 apples", None),
        ("5.", None),
        ("9" * 100_000, None),
    ],
)
def test_plain_numbers(text: str, value: Fraction | int | None) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{84}.", "84"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed{84", None),
        (r"\boxed 84", None),
        ("84", None),
        (r"\boxed{" + "1" * 100_000 + "}", None),
        (r"\boxed{" * 20_000, None),
        ("{" * 50_000 + r"\boxed{3}", "3"),
    ],
)
def test_boxed_answers(text: str, content: str | None) -> None:
    assert parse_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("calc: 12 * 7", Calculation("12 * 7")),
        ("calc:12*7", Calculation("12*7")),
        ("answer: 84", Answer("84")),
        ("answer: x = 84", Answer("x = 84")),
        ("84", None),
        ("Answer: 84", None),
        ("calc:", None),
        ("answer: ", None),
        ("so calc: 1 + 1", None),
        ("calc: 1 + 1\nanswer: 2", None),
        ("calc: 1 + 1\x0banswer: 2", None),
        ("", None),
        ("answer: " + "9" * 100_000, None),
    ],
)
def test_plain_turns(text: str, turn: Calculation | Answer | None) -> None:
    assert parse_turn(text, "plain") == turn


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("I need this:\ncalc: 12 * 7", Calculation("12 * 7")),
        (r"It is \boxed{84}.", Answer("84")),
        ("\\boxed{84}\ncalc: 12 * 7", None),
        ("calc: 12 * 7\nand then?", None),
        ("answer: 84", None),
    ],
)
def test_turns_of_a_reasoning_agent(text: str, turn: Calculation | Answer | None) -> None:
    assert parse_turn(text, "boxed") == turn


@pytest.mark.parametrize(
    ("text", "answer"), [("84", "84"), (" 84 ", "84"), ("8\n4", None), ("", None), ("9" * 100_000, None)]
)
def test_single_answers_are_one_line(text: str, answer: str | None) -> None:
    assert parse_answer(text, "plain") == (Answer(answer) if answer else None)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("The sum is right.\nverdict: correct", True),
        ("verdict: wrong", False),
        ("verdict: wrong\nverdict: correct", None),
        ("the verdict: correct", None),
        ("Verdict: correct", None),
        ("verdict: correct!", None),
        ("", None),
    ],
)
def test_a_verdict_stands_alone_on_one_line(text: str, verdict: bool | None) -> None:
    assert parse_verdict(text) is verdict
