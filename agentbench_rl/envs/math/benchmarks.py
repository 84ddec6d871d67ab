"""GSM8K, MATH-500, SVAMP and AMC23 from their files.

GSM8K has an official test file; of its training file, the questions whose hash ends in 9 are the validation split. The
others are test sets of one file, split by the hash of the question into 60 % train, 20 % validation, 20 % test; scores
of such a test split are comparable with published ones only where their number of problems is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentbench_rl.envs.math.calculator import CalculatorError, MalformedExpressionError, evaluate, has_operation, steps
from agentbench_rl.envs.math.problems import Digits, Problem, belongs_to, read_rows, unique
from agentbench_rl.types import AgentRLError

Row = dict[str, Any]
_SINGLE: Digits = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
_TRAINING: Digits = {"train": range(9), "validation": range(9, 10)}
_ANNOTATION = re.compile(r"<<([^<>=]+)=[^<>]*>>")


def load_benchmark(name: str, directory: Path, split: str) -> list[Problem]:
    """The problems of a split, without repeated questions.

    Files are `<stem>.jsonl` or `<stem>.jsonl.gz` in `directory`. Raises AgentRLError naming the file that is missing,
    or the line that is damaged.
    """
    if name != "gsm8k":
        stem, convert = _FILES[name]
        return [problem for problem in _read(directory, stem, convert) if belongs_to(problem.question, split, _SINGLE)]
    if split == "test":
        return _read(directory, "gsm8k_test", _gsm8k)
    problems = _read(directory, "gsm8k_train", _gsm8k)
    return [problem for problem in problems if belongs_to(problem.question, split, _TRAINING)]


def _read(directory: Path, stem: str, convert: Callable[[Row], Problem]) -> list[Problem]:
    files = [directory / f"{stem}.jsonl", directory / f"{stem}.jsonl.gz"]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise AgentRLError(
            f"environment.data: {directory} holds neither {files[0].name} nor {files[1].name}; "
            f"`agentrl env fetch math {directory}` downloads GSM8K and MATH-500"
        )
    problems = []
    for number, row in read_rows(file):
        try:
            problems.append(convert(row))
        except (KeyError, TypeError, ValueError, AttributeError, MalformedExpressionError, CalculatorError) as error:
            raise AgentRLError(
                f"{file}, line {number}: not a problem of this benchmark ({type(error).__name__}: {error}); "
                "delete the file and fetch it again"
            ) from None
    if not problems:
        raise AgentRLError(f"{file}: holds no problems; delete it and fetch it again")
    return unique(problems)


def _gsm8k(row: Row) -> Problem:
    """`answer` is a solution whose calculations stand between << and >>, with the final answer behind ####."""
    solution, _, answer = row["answer"].rpartition("####")
    if not solution or not answer.strip():
        raise ValueError("the answer has no ####")
    return Problem("gsm8k", row["question"], answer.strip(), "math", _computable(_ANNOTATION.findall(solution)))


def _math500(row: Row) -> Problem:
    subject = "-".join(row["subject"].lower().split())
    return Problem(f"math500-{subject}", row["problem"], row["answer"], "math")


def _svamp(row: Row) -> Problem:
    question = f"{row['Body'].strip().rstrip('.')}. {row['Question'].strip()}"
    return Problem("svamp", question, _plain(row["Answer"]), "math", tuple(steps(row["Equation"])))


def _amc23(row: Row) -> Problem:
    return Problem("amc23", row["problem"], _plain(row["answer"]), "math")


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)


def _computable(expressions: list[str]) -> tuple[str, ...]:
    """Those that the calculator knows and that compute something."""
    known = []
    for expression in (text.strip() for text in expressions):
        try:
            evaluate(expression)
            if has_operation(expression):
                known.append(expression)
        except (MalformedExpressionError, CalculatorError):
            continue
    return tuple(known)


_FILES: Mapping[str, tuple[str, Callable[[Row], Problem]]] = {
    "math500": ("math500", _math500),
    "svamp": ("svamp_test", _svamp),
    "amc23": ("amc23_test", _amc23),
}
