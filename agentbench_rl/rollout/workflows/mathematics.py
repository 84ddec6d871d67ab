r"""Mathematics: solvers propose solutions, an aggregator answers for the team.

fixed: solvers → aggregator. mixed: solvers → verifier (→ reviser → verifier …) → aggregator. routed: router → chosen
solvers → router … → aggregator. Well-formed solutions are committed to memory as they are; only the aggregator's
answer goes to the environment.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from agentbench_rl.config.environment import EnvironmentConfig, MathEnvironment
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.envs.math.grammar import parse_boxed, parse_number
from agentbench_rl.rollout.workflows import grammar
from agentbench_rl.rollout.workflows.base import ActiveSet, Demonstration, Move
from agentbench_rl.rollout.workflows.demonstrations import MISTAKES, demonstrated_route
from agentbench_rl.rollout.workflows.order import Order, Part, Turn
from agentbench_rl.types import AgentRLError, StepResult

_VERDICTS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class Memory:
    """The problem, who acts next, and the solutions so far with their authors."""

    question: str
    turn: Turn | None
    solutions: tuple[tuple[str, str], ...] = ()


class Mathematics:
    """Implements `Workflow`; raises AgentRLError for another environment or one with a calculator."""

    def __init__(self, team: TeamConfig, environment: EnvironmentConfig) -> None:
        if not isinstance(environment, MathEnvironment):
            raise AgentRLError(f"team.workflow: mathematics needs environment.name: math, not {environment.name}")
        if environment.calculator:
            raise AgentRLError("team.workflow: mathematics answers once; set environment.calculator to false")
        self._boxed = environment.answer_format == "boxed"
        self._members = team.members
        parts = Part("solver", "propose"), Part("aggregator", "aggregate")
        self._order = Order(team, *parts, approval=_VERDICTS[0], reviser=Part("reviser", "revise"))

    @property
    def instructions(self) -> dict[str, str]:
        """See `Workflow`."""
        texts = {
            "router": f"Who acts next, of solvers 1 to {self._members}? <route>1</route> or <route>1,2</route>. "
            "When the solutions suffice: <route>STOP</route>",
            "solver": r"Solve the problem. Answer in \boxed{}.",
            "verifier": "Are the solutions right? <verify>approve</verify> or <verify>reject</verify>",
            "reviser": r"The solutions were rejected. Solve the problem anew. Answer in \boxed{}.",
            "aggregator": r"Weigh the solutions and answer for the team. FINAL: \boxed{}",
        }
        return {role: text for role, text in texts.items() if role in self._order.roles}

    @property
    def largest_set(self) -> int:
        """See `Workflow`."""
        return self._members

    def start(self, observation: str) -> Memory:
        """See `Workflow`."""
        return Memory(observation, self._order.begin())

    def next_set(self, memory: Memory) -> ActiveSet | None:
        """See `Workflow`."""
        if memory.turn is None:
            return None
        lines = [memory.question, *(f"{author}: {text}" for author, text in memory.solutions)]
        return self._order.active(memory.turn, "\n".join(lines))

    def moves(self, active: ActiveSet, outputs: Sequence[tuple[str, bool]]) -> tuple[Move, ...]:
        """See `Workflow`."""
        return tuple(self._move(member.role, *said) for member, said in zip(active.members, outputs, strict=True))

    def commit(
        self, memory: Memory, active: ActiveSet, moves: Sequence[Move], results: Sequence[StepResult | None]
    ) -> Memory:
        """See `Workflow`."""
        assert memory.turn is not None
        new: list[tuple[str, str]] = []
        if memory.turn.who in ("set", "reviser"):
            said = zip(active.members, moves, strict=True)
            new = [(member.agent, move.action) for member, move in said if move.valid]
        turn = self._order.after(memory.turn, moves)
        return replace(memory, turn=turn, solutions=(*memory.solutions, *new))

    def demonstrate(
        self, memory: Memory, active: ActiveSet, expert: str | None, rng: random.Random
    ) -> tuple[Demonstration, ...] | None:
        """Solvers are wrong now and then; the verifier approves when most of them agree on the right answer.

        The aggregator takes the right answer where it is among the solutions, or else what most say.
        """
        assert memory.turn is not None
        if expert is None:
            return None
        answer = (parse_boxed(expert) or "") if self._boxed else expert
        found = [box for _, text in memory.solutions if (box := parse_boxed(text)) is not None]
        agreed = Counter(found).most_common(1)[0][0] if found else answer
        match memory.turn.who:
            case "router":
                return (Demonstration(demonstrated_route(self._members, answer in found, rng)),)
            case "verifier":
                return (Demonstration(f"<verify>{_VERDICTS[not found or agreed != answer]}</verify>"),)
            case "last":
                return (Demonstration(f"FINAL: \\boxed{{{answer if answer in found else agreed}}}"),)
            case _:
                return tuple(_solution(answer, rng) for _ in active.members)

    def _move(self, role: str, text: str, finished: bool) -> Move:
        match role:
            case "aggregator":
                answer = grammar.final_answer(text, finished)
                action = f"\\boxed{{{answer}}}" if self._boxed and answer else answer
                return Move(action or "", action is not None, to_environment=action is not None)
            case "verifier":
                said = grammar.verdict(text, finished, _VERDICTS)
            case "router":
                said = grammar.route(text, finished, self._members)
            case _:
                said = grammar.solution(text, finished)
        return Move(said or "", said is not None)


def _solution(answer: str, rng: random.Random) -> Demonstration:
    mistaken = rng.random() < MISTAKES
    return Demonstration(f"\\boxed{{{_wrong(answer, rng) if mistaken else answer}}}", trainable=not mistaken)


def _wrong(answer: str, rng: random.Random) -> str:
    """A number near the answer, or something else where the answer is no number."""
    value = parse_number(answer)
    return str(value + Fraction(rng.choice((-10, -2, -1, 1, 2, 10)))) if value is not None else f"{answer} + 1"
