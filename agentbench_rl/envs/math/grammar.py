"""What an agent may write, parsed strictly: numbers, boxed answers, calculator turns, verdicts. No match is None."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

AnswerFormat = Literal["plain", "boxed"]
#: Longer answers are no answers.
MAX_ANSWER_CHARACTERS = 1000
#: 12, -3, 1,234.50, $18, 7/8
_NUMBER = re.compile(r"([+-]?)\$?([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(\.[0-9]+)?(?:/([0-9]+))?", re.ASCII)
_BOX = "\\boxed{"
_CALCULATION = re.compile(r"calc: *(\S.*)")
_ANSWER = re.compile(r"answer: *(\S.*)")
_VERDICT = re.compile(r"verdict: (correct|wrong)")


@dataclass(frozen=True, slots=True)
class Calculation:
    """The agent asks the calculator."""

    expression: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent answers, which ends the episode."""

    text: str


def parse_number(text: str) -> Fraction | None:
    """The exact value of a plain number: sign, dollar sign, grouped thousands, decimals, or a fraction of integers."""
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_ANSWER_CHARACTERS else None
    if match is None:
        return None
    sign, whole, decimals, denominator = match.groups()
    if not (whole or decimals) or (denominator and (decimals or not int(denominator))):
        return None
    value = Fraction((whole or "0").replace(",", "") + (decimals or "")) / int(denominator or 1)
    return -value if sign == "-" else value


def parse_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` with balanced braces; None without one, or when it is empty."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
    depth = 1
    for end, character in enumerate(text[start : start + MAX_ANSWER_CHARACTERS + 1], start):
        depth += {"{": 1, "}": -1}.get(character, 0) if text[end - 1] != "\\" else 0
        if not depth:
            return text[start:end].strip() or None
    return None


def parse_answer(text: str, answer_format: AnswerFormat) -> Answer | None:
    r"""A single-turn response: `plain`, one line that is the answer; `boxed`, any text with a `\boxed{answer}`."""
    if answer_format == "boxed":
        content = parse_boxed(text)
        return Answer(content) if content else None
    content = text.strip()
    if not content or len(content) > MAX_ANSWER_CHARACTERS or len(content.splitlines()) > 1:
        return None
    return Answer(content)


def parse_turn(text: str, answer_format: AnswerFormat) -> Calculation | Answer | None:
    r"""A turn with the calculator.

    `plain`: one line, `calc: EXPRESSION` or `answer: ANSWER`. `boxed`: any text that either ends with a line
    `calc: EXPRESSION` or holds a `\boxed{answer}`; both at once are neither.
    """
    if answer_format == "plain":
        return _plain_turn(text.strip())
    last = text.strip().rpartition("\n")[2]
    calculation = _CALCULATION.fullmatch(last)
    answer = parse_answer(text, "boxed")
    if calculation is None:
        return answer
    return Calculation(calculation[1]) if answer is None and len(last) <= MAX_ANSWER_CHARACTERS else None


def parse_verdict(text: str) -> bool | None:
    """Whether a judging role found an answer correct: exactly one verdict line, `verdict: correct` or `… wrong`."""
    verdicts = [match[1] for line in text.splitlines() if (match := _VERDICT.fullmatch(line.strip()))]
    return verdicts[0] == "correct" if len(verdicts) == 1 else None


def _plain_turn(line: str) -> Calculation | Answer | None:
    if len(line) > MAX_ANSWER_CHARACTERS or len(line.splitlines()) > 1:
        return None
    if calculation := _CALCULATION.fullmatch(line):
        return Calculation(calculation[1])
    answer = _ANSWER.fullmatch(line)
    return Answer(answer[1]) if answer else None
