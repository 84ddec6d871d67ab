"""A handful of passages and questions in files, and playing by an expert."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from agentbench_rl.config.environment import SearchEnvironment, SearchGenerator
from agentbench_rl.envs.base import Environment, Suite
from agentbench_rl.envs.search.suite import SearchSuite, open_source
from agentbench_rl.types import StepResult, Task

PASSAGES = [
    {"id": "p1", "title": "Mount Aran", "text": "Mount Aran is a mountain.\nIt stands in Borland."},
    {"id": "p2", "title": "Borland", "text": "Borland is a country. Its capital is Cestia."},
    {"id": "p3", "title": "Cestia", "text": "Cestia is a city of 40,000 people."},
    {"id": "p4", "title": "Aran sweater", "text": "The Aran sweater is a garment."},
]
QUESTION = {
    "qid": "q1",
    "question": "What is the capital of the country of Mount Aran?",
    "answers": ["Cestia", "the city of Cestia"],
    "gold": ["p1", "p2"],
    "type": "bridge",
}


def write_data(
    directory: Path, questions: list[dict[str, Any]] | None = None, passages: list[dict[str, Any]] = PASSAGES
) -> Path:
    """Write `questions.jsonl` (by default 40 of the same answer) and `passages.jsonl.gz`."""
    if questions is None:
        questions = [QUESTION | {"qid": f"q{n}", "question": f"Question {n}?"} for n in range(40)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions), encoding="utf-8")
    lines = "".join(json.dumps(passage) + "\n" for passage in passages)
    (directory / "passages.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return directory


def generated(counts: dict[str, int | None], seed: int = 0, **settings: Any) -> SearchSuite:
    """A suite over small worlds."""
    defaults = {"worlds": 1, "entities": 60, "hops": (1, 2, 3)}
    sizes = {key: settings.pop(key, default) for key, default in defaults.items()}
    generator = SearchGenerator(seed=seed, **sizes)
    return open_source(SearchEnvironment(name="search", generator=generator, **settings), counts)


def one_question(directory: Path, **settings: Any) -> tuple[SearchSuite, Task]:
    """A suite of the one question above, in files, and its task."""
    for split in ("train", "validation", "test"):
        write_data(directory, [QUESTION])
        suite = open_source(SearchEnvironment(name="search", data=directory, **settings), {split: None})
        if suite.tasks(split):
            return suite, suite.tasks(split)[0]
    raise AssertionError("the question is in no split")


def play(suite: Suite, task: Task, kind: str, limit: int = 20) -> tuple[Environment, StepResult | None, int]:
    """Let an expert play; returns the episode, the last result and the number of steps."""
    environment = suite.make()
    observation = environment.reset(task).text
    act = suite.demonstrator(kind, environment, task, 0)
    action: str | None = None
    result: StepResult | None = None
    for step in range(limit):
        action = act(observation, action)
        if action is None:
            return environment, result, step
        result = environment.step(action)
        observation = result.observation
        if result.done:
            return environment, result, step + 1
    return environment, result, limit
