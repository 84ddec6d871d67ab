"""One question and a search engine: an episode's state is the passages seen so far, a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentbench_rl.config.environment import SearchEnvironment
from agentbench_rl.envs.search import actions
from agentbench_rl.envs.search.answers import exact_match, f1_score
from agentbench_rl.envs.search.experts import oracle_action, reader_action
from agentbench_rl.envs.search.problem import Problem
from agentbench_rl.types import InfrastructureError, Observation, StepResult, Task


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The moment of an episode; `seen`: numbers of the passages shown, the first seen first."""

    task: Task
    seen: tuple[int, ...] = ()
    over: bool = False
    steps: int = 0


class SearchEpisode:
    """One episode; implements `Environment`.

    `find` returns the problem of a task; `reset` or `restore` comes first.
    """

    __slots__ = ("_find", "_moment", "_problem", "_rules")

    _problem: Problem

    def __init__(self, find: Callable[[Task], Problem], rules: SearchEnvironment) -> None:
        self._find = find
        self._rules = rules
        self._moment: Snapshot | None = None

    def reset(self, task: Task) -> Observation:
        """Ask the task's question; raises AgentRLError for an unknown task or one of other content."""
        self.restore(Snapshot(task))
        return Observation(f"Question: {self._problem.question.question}")

    def step(self, action: str) -> StepResult:
        """Search, or answer and end; anything else is told how to. Raises InfrastructureError after the end."""
        moment = self.snapshot()
        if moment.over:
            raise InfrastructureError("search: the episode is over; reset it before the next step.")
        self._moment = moment = replace(moment, steps=moment.steps + 1)
        parsed = actions.parse(action)
        if parsed is None:
            return StepResult(actions.MALFORMED, 0.0, False, False, self.process_reward(), valid=False)
        if parsed.kind == "answer":
            return self._answer(parsed.text)
        found = self._problem.library.search(parsed.text, self._rules.top_k)
        new = tuple(number for number in found if number not in moment.seen)
        self._moment = replace(moment, seen=moment.seen + new)
        passages = (self._problem.library.passages[number] for number in found)
        shown = actions.information(passages, self._rules.passage_characters)
        return StepResult(shown, 0.0, False, False, self.process_reward(), tool_calls=1)

    def snapshot(self) -> Snapshot:
        """The moment as a value."""
        if self._moment is None:
            raise InfrastructureError("search: reset must be called before anything else.")
        return self._moment

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot of any episode; raises InfrastructureError for anything else."""
        if not isinstance(snapshot, Snapshot):
            raise InfrastructureError(f"search: {type(snapshot).__name__} is no snapshot of a search episode.")
        self._problem = self._find(snapshot.task)
        self._moment = snapshot

    def fork(self) -> SearchEpisode:
        """An independent copy; it shares only values that never change."""
        copy = SearchEpisode(self._find, self._rules)
        copy._moment, copy._problem = self.snapshot(), self._problem
        return copy

    def digest(self) -> str:
        """Hash of question, passages seen in their order, and step counter."""
        moment = self.snapshot()
        return _hash([moment.task.task_id, moment.task.content_hash, moment.seen, moment.over, moment.steps])

    def state_key(self) -> str:
        """Hash of question and set of passages seen."""
        moment = self.snapshot()
        return _hash([moment.task.task_id, moment.task.content_hash, sorted(moment.seen), moment.over])

    def admissible(self) -> None:
        """Queries and answers are free text."""
        return

    def process_reward(self) -> float | None:
        """Share of the gold passages seen, or None where the question names none."""
        seen, gold = self.snapshot().seen, self._problem.gold
        return sum(number in seen for number in gold) / len(gold) if gold else None

    def expert_action(self) -> str | None:
        """What the reader of generated pages, or else the oracle, would do now; None when over or at a loss."""
        moment = self.snapshot()
        if moment.over:
            return None
        if not self._problem.generated:
            return oracle_action(self._problem, moment.seen)
        return reader_action(self._problem, moment.seen, self._rules.passage_characters)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, text: str) -> StepResult:
        golds = self._problem.question.answers
        success = exact_match(text, golds)
        reward = float(success) if self._rules.reward == "em" else f1_score(text, golds)
        self._moment = replace(self.snapshot(), over=True)
        return StepResult("Correct." if success else "Not correct.", reward, True, success, self.process_reward())


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
