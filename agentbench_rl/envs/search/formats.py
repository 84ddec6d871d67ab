"""Published question sets in our form: HotpotQA (distractor), MuSiQue (answerable), Natural Questions (DPR).

The corpus is the pool of all contexts, gold and distractors, of all questions; equal passages are one. Questions of
the same words are kept once, the first of them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentbench_rl.envs.search.answers import normalise
from agentbench_rl.envs.search.corpus import Passage, Question
from agentbench_rl.types import AgentRLError

#: A question without its gold ids, its contexts as (title, text, is gold).
Record = tuple[Question, list[tuple[str, str, bool]]]
Json = dict[str, Any]


class Pool:
    """Collects questions and the passages of their contexts."""

    def __init__(self) -> None:
        self.passages: dict[str, Passage] = {}
        self._asked: set[str] = set()

    def add(self, records: Iterable[Record]) -> list[Question]:
        """Return the questions that are new, with their gold ids; their contexts join `passages`."""
        questions = []
        for question, contexts in records:
            words = normalise(question.question)
            if words in self._asked or not question.answers:
                continue
            self._asked.add(words)
            gold = []
            for title, text, is_gold in contexts:
                passage = Passage(_passage_id(title, text), title, text)
                self.passages[passage.id] = passage
                if is_gold:
                    gold.append(passage.id)
            questions.append(
                Question(question.qid, question.question, question.answers, tuple(dict.fromkeys(gold)), question.type)
            )
        return questions


def hotpotqa(path: Path) -> Iterator[Record]:
    """Records of a file of HotpotQA: one JSON list."""
    for row in _rows(path, json.load):
        facts = {title for title, _ in row["supporting_facts"]}
        contexts = [(title, "".join(sentences).strip(), title in facts) for title, sentences in row["context"]]
        yield Question(row["_id"], row["question"], (row["answer"],), (), row["type"]), contexts


def musique(path: Path) -> Iterator[Record]:
    """Records of a file of MuSiQue: one object a line; aliases count as answers."""
    for row in _rows(path, lambda file: [json.loads(line) for line in file if line.strip()]):
        paragraphs = row["paragraphs"]
        order = [step["paragraph_support_idx"] for step in row["question_decomposition"]]
        ranked = sorted(paragraphs, key=lambda p: order.index(p["idx"]) if p["idx"] in order else len(order))
        contexts = [(p["title"], p["paragraph_text"], bool(p["is_supporting"])) for p in ranked]
        answers = tuple(dict.fromkeys([row["answer"], *row["answer_aliases"]]))
        yield Question(row["id"], row["question"], answers, (), row["id"].partition("__")[0]), contexts


def natural_questions(path: Path) -> Iterator[Record]:
    """Records of a file of DPR's Natural Questions: one JSON list; the first positive passage is gold."""
    for number, row in enumerate(_rows(path, json.load)):
        positive = [(c["title"], c["text"], rank == 0) for rank, c in enumerate(row["positive_ctxs"])]
        others = [(c["title"], c["text"], False) for c in (*row["hard_negative_ctxs"], *row["negative_ctxs"])]
        if positive:
            yield Question(f"nq-{number:05d}", row["question"], tuple(row["answers"]), (), "nq"), positive + others


FORMATS: Mapping[str, Callable[[Path], Iterator[Record]]] = {
    "hotpotqa": hotpotqa,
    "musique": musique,
    "nq": natural_questions,
}


def read_records(dataset: str, path: Path) -> list[Record]:
    """All records of a file; raises AgentRLError when it is damaged or of another format."""
    try:
        return list(FORMATS[dataset](path))
    except FileNotFoundError:
        raise AgentRLError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        reason = f"{type(error).__name__}: {error}"
        raise AgentRLError(f"{path}: not a file of {dataset} ({reason}); delete it and fetch it again") from None


def _rows(path: Path, load: Callable[[Any], Any]) -> Iterator[Json]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from load(file)


def _passage_id(title: str, text: str) -> str:
    return hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:20]
