"""Questions and passages, and the files that hold them.

`passages.jsonl.gz`: one object a line with `id`, `title`, `text`. Questions: one object a line with `qid`, `question`,
`answers` (one or more texts), `gold` (ids of the passages that tell the answer, may be empty) and `type` (may be
absent). Other keys are ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agentbench_rl.types import AgentRLError

_T = TypeVar("_T")


class Passage(NamedTuple):
    """A passage of the corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its accepted answers, and the ids of the passages that tell the answer, in the order of the hops."""

    qid: str
    question: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    type: str


def read_passages(path: Path) -> list[Passage]:
    """Read `passages.jsonl.gz`, sorted by id; raises AgentRLError for a missing or damaged file or a repeated id."""
    passages = sorted(_read_lines(path, _passage))
    _check_ids(path, [passage.id for passage in passages])
    if not passages:
        raise AgentRLError(f"{path}: holds no passages")
    return passages


def write_passages(path: Path, passages: Iterable[Passage]) -> None:
    """Write passages; equal passages give equal bytes."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as out:
        for passage in passages:
            out.write((json.dumps(passage._asdict(), ensure_ascii=False) + "\n").encode())


def read_questions(path: Path) -> list[Question]:
    """Read questions, in file order; raises AgentRLError for a missing or damaged file or a repeated id."""
    questions = _read_lines(path, _question)
    _check_ids(path, [question.qid for question in questions])
    return questions


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write questions, one a line."""
    lines = [json.dumps(asdict(question), ensure_ascii=False) + "\n" for question in questions]
    path.write_text("".join(lines), encoding="utf-8")


def corpus_hash(passages: Sequence[Passage]) -> str:
    """SHA-256 of all passages, sorted by id."""
    digest = hashlib.sha256()
    for passage in sorted(passages):
        digest.update(json.dumps(passage).encode() + b"\n")
    return digest.hexdigest()


def _passage(row: dict[str, Any]) -> Passage:
    return Passage(_text(row, "id"), _text(row, "title"), _text(row, "text"))


def _question(row: dict[str, Any]) -> Question:
    answers, gold = _texts(row, "answers"), _texts(row, "gold")
    if not answers or not all(answer.strip() for answer in answers):
        raise ValueError("'answers' must hold one or more texts that are not empty")
    if not _text(row, "question").strip():
        raise ValueError("'question' is empty")
    return Question(_text(row, "qid"), row["question"], answers, gold, str(row.get("type") or "question"))


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be a text, not {value!r}")
    return value


def _texts(row: dict[str, Any], key: str) -> tuple[str, ...]:
    values = row.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key!r} must be a list of texts, not {values!r}")
    return tuple(values)


def _read_lines(path: Path, parse: Callable[[dict[str, Any]], _T]) -> list[_T]:
    rows = []
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not an object")
                    rows.append(parse(row))
    except FileNotFoundError:
        raise AgentRLError(f"{path}: no such file; see `agentrl env fetch search DIR`") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise AgentRLError(f"{path}: damaged at line {number} or after it: {error}; fetch or write it again") from None
    return rows


def _check_ids(path: Path, ids: Sequence[str]) -> None:
    repeated = [id_ for id_, count in Counter(ids).items() if count > 1]
    if repeated:
        raise AgentRLError(f"{path}: {len(repeated)} ids stand twice, such as {repeated[0]!r}")
