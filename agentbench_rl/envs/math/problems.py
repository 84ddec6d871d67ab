"""A problem, its identity, and files of problems: one JSON object per line."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentbench_rl.types import AgentRLError

Grading = Literal["number", "text", "countdown", "math"]
#: Which last digits of the question's hash a split has.
Digits = Mapping[str, range]


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its answer.

    grading: see `grading.Grader`. steps: expressions whose values lead to the answer, () where none are known.
    """

    task_type: str
    question: str
    answer: str
    grading: Grading
    steps: tuple[str, ...] = ()

    @property
    def task_id(self) -> str:
        """Source and a hash of the question alone, so that a question has one id wherever it stands."""
        return f"{self.task_type}/{question_hash(self.question)[:16]}"

    @property
    def content_hash(self) -> str:
        """SHA-256 of all that defines the problem."""
        content = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()


def question_hash(question: str) -> str:
    """SHA-256 of the question, white space aside."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()


def belongs_to(question: str, split: str, digits: Digits) -> bool:
    """Whether the question's hash puts it into the split: no question is in two, however many are drawn."""
    return int(question_hash(question), 16) % 10 in digits[split]


def unique(problems: Iterable[Problem]) -> list[Problem]:
    """The problems in order, without those whose question came before."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(question_hash(problem.question), problem)
    return list(first.values())


def write_problems(problems: Sequence[Problem], file: Path) -> None:
    """Write one JSON object per line."""
    lines = (json.dumps(asdict(problem), ensure_ascii=False) for problem in problems)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_problems(file: Path) -> list[Problem]:
    """Read what `write_problems` wrote; raises AgentRLError naming the file and the line that is damaged."""
    problems = []
    for number, row in read_rows(file):
        try:
            problems.append(Problem(**row | {"steps": tuple(row["steps"])}))
        except (TypeError, KeyError) as error:
            raise AgentRLError(f"{file}, line {number}: not a problem ({error}); draw the panels anew") from None
    return problems


def read_rows(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Line numbers and objects of a `.jsonl` or `.jsonl.gz`; raises AgentRLError when it is missing or damaged."""
    try:
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise AgentRLError(f"{file}: cannot be read ({error}); delete it and fetch it again") from None
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise AgentRLError(f"{file}, line {number}: damaged ({error}); delete it and fetch it again") from None
        if not isinstance(row, dict):
            raise AgentRLError(f"{file}, line {number}: not a JSON object; delete it and fetch it again")
        rows.append((number, row))
    return rows
