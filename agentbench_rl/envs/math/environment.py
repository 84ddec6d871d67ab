"""One problem as an episode: a single answer, or turns with a calculator that end with an answer.

Process reward with the calculator: of the values that lead to the answer (`Problem.steps`) and the answer itself, the
share that is there, and 1 once the answer is right. Without it: 0, then 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentbench_rl.envs.math.calculator import (
    CalculatorError,
    MalformedExpressionError,
    display,
    evaluate,
    has_operation,
)
from agentbench_rl.envs.math.grading import Grader
from agentbench_rl.envs.math.grammar import Answer, AnswerFormat, Calculation, parse_answer, parse_turn
from agentbench_rl.envs.math.problems import Problem
from agentbench_rl.types import InfrastructureError, Observation, StepResult, Task

CORRECT, WRONG = "Correct.", "Wrong."
MALFORMED = {
    "plain": "Write calc: EXPRESSION or answer: ANSWER",
    "boxed": "End with a line calc: EXPRESSION, or answer with \\boxed{ANSWER}",
}


@dataclass(frozen=True, slots=True)
class State:
    """Which steps of the problem the calculator has shown, and whether the answer was right (None: none was given)."""

    shown: frozenset[int] = frozenset()
    correct: bool | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Problem, state and number of turns taken."""

    problem: Problem
    state: State
    turns: int


class MathEpisode:
    """One episode of a problem; implements `Environment`. `reset` comes first."""

    __slots__ = ("_calculator", "_find", "_format", "_grader", "_moment")

    def __init__(
        self, find: Callable[[Task], Problem], grader: Grader, answer_format: AnswerFormat, calculator: bool
    ) -> None:
        self._find, self._grader = find, grader
        self._format, self._calculator = answer_format, calculator
        self._moment: Snapshot | None = None

    def reset(self, task: Task) -> Observation:
        """Start the task; raises AgentRLError for an unknown task or one of other content."""
        problem = self._find(task)
        self._moment = Snapshot(problem, State(), 0)
        return Observation(problem.question)

    def step(self, action: str) -> StepResult:
        """Calculate or answer; raises InfrastructureError when the episode is over or the grader fails."""
        moment = self.snapshot()
        if moment.state.correct is not None:
            raise InfrastructureError("Mathematics: the episode is over; reset must be called before the next step.")
        turn = parse_turn(action, self._format) if self._calculator else parse_answer(action, self._format)
        match turn:
            case Calculation(expression):
                return self._calculate(moment, expression)
            case Answer(text):
                grade = self._grader.grade(moment.problem, text)
                return self._finish(moment, grade.correct, grade.readable)
        if not self._calculator:
            return self._finish(moment, correct=False, valid=False)
        return self._continue(moment, moment.state, MALFORMED[self._format], valid=False)

    def snapshot(self) -> Snapshot:
        """The moment as a value."""
        if self._moment is None:
            raise InfrastructureError("Mathematics: reset must be called before anything else.")
        return self._moment

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot of any episode; raises InfrastructureError for anything else."""
        if not isinstance(snapshot, Snapshot):
            raise InfrastructureError(f"Mathematics: {type(snapshot).__name__} is no snapshot of an episode.")
        self._moment = snapshot

    def fork(self) -> MathEpisode:
        """An independent copy; it shares values that never change, and the grader."""
        copy = MathEpisode(self._find, self._grader, self._format, self._calculator)
        copy._moment = self.snapshot()
        return copy

    def digest(self) -> str:
        """Hash of problem, state and turn counter."""
        return _hash(f"{self.state_key()} {self.snapshot().turns}")

    def state_key(self) -> str:
        """Hash of problem and state."""
        moment = self.snapshot()
        return _hash(f"{moment.problem.content_hash} {sorted(moment.state.shown)} {moment.state.correct}")

    def admissible(self) -> None:
        """The action space is open."""

    def process_reward(self) -> float:
        """See the head of this module."""
        moment = self.snapshot()
        if moment.state.correct:
            return 1.0
        return len(moment.state.shown) / (len(moment.problem.steps) + 1) if self._calculator else 0.0

    def expert_action(self) -> str | None:
        """The next step that the calculator has not shown, then the known answer; None when the episode is over."""
        moment = self.snapshot()
        if moment.state.correct is not None:
            return None
        missing = [step for index, step in enumerate(moment.problem.steps) if index not in moment.state.shown]
        if self._calculator and missing:
            return f"calc: {missing[0]}"
        answer = moment.problem.answer
        if self._format == "boxed":
            return f"\\boxed{{{answer}}}"
        return f"answer: {answer}" if self._calculator else answer

    def close(self) -> None:
        """Nothing is held: the grader belongs to the suite."""

    def _calculate(self, moment: Snapshot, expression: str) -> StepResult:
        try:
            value = evaluate(expression)
        except MalformedExpressionError as error:
            return self._continue(moment, moment.state, f"error: {error}", valid=False)
        except CalculatorError as error:
            return self._continue(moment, moment.state, f"error: {error}", calls=1)
        state = moment.state
        if has_operation(expression):
            reached = {index for index, step in enumerate(moment.problem.steps) if evaluate(step) == value}
            state = replace(state, shown=state.shown | reached)
        return self._continue(moment, state, display(value), calls=1)

    def _continue(
        self, moment: Snapshot, state: State, observation: str, *, calls: int = 0, valid: bool = True
    ) -> StepResult:
        self._moment = Snapshot(moment.problem, state, moment.turns + 1)
        return StepResult(observation, 0.0, False, False, self.process_reward(), tool_calls=calls, valid=valid)

    def _finish(self, moment: Snapshot, correct: bool, valid: bool) -> StepResult:
        self._moment = Snapshot(moment.problem, replace(moment.state, correct=correct), moment.turns + 1)
        observation, reward = (CORRECT, 1.0) if correct else (WRONG, 0.0)
        return StepResult(observation, reward, True, correct, self.process_reward(), valid=valid)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
