"""A question in its corpus."""

from __future__ import annotations

from dataclasses import dataclass

from agentbench_rl.envs.search.corpus import Question
from agentbench_rl.envs.search.index import Library


@dataclass(frozen=True, slots=True)
class Problem:
    """A question in the corpus it is asked over; `gold` are numbers of passages; `generated`: of a made-up world."""

    question: Question
    library: Library
    gold: tuple[int, ...]
    generated: bool
