"""Propose and act: before every step of any environment proposers suggest actions, and an actor takes one.

fixed: proposers, in every round → actor. mixed: proposers → verifier (→ proposers …) → actor. routed: router → chosen
proposers → router … → actor. Then it begins anew; proposals are forgotten after the step. Actions are written as
`environment.prompt.action_format` says; the actor's goes to the environment well-formed or not, as a single agent's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.policies.context import format_action, parse_action
from agentbench_rl.rollout.workflows import grammar
from agentbench_rl.rollout.workflows.base import ActiveSet, Demonstration, Move
from agentbench_rl.rollout.workflows.demonstrations import MISTAKES, demonstrated_route
from agentbench_rl.rollout.workflows.order import Order, Part, Turn
from agentbench_rl.types import StepResult

_VERDICTS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class Memory:
    """The first observation, who acts next, the last actions with what they led to, and proposals for the next."""

    goal: str
    turn: Turn
    history: tuple[tuple[str, str], ...] = ()
    proposals: tuple[tuple[str, str], ...] = ()


class ProposeAct:
    """Implements `Workflow`."""

    def __init__(self, team: TeamConfig, environment: EnvironmentConfig) -> None:
        self._format = environment.prompt.action_format
        self._members = team.members
        self._shown = team.history
        self._order = Order(team, Part("proposer", "propose"), Part("actor", "act"), approval=_VERDICTS[0])

    @property
    def instructions(self) -> dict[str, str]:
        """See `Workflow`."""
        how = " <think></think><action></action>" if self._format == "tags" else ""
        texts = {
            "router": f"Who acts next, of proposers 1 to {self._members}? <route>1</route> or <route>1,2</route>. "
            "When the proposals suffice: <route>STOP</route>",
            "proposer": f"Propose the next action.{how}",
            "verifier": "Is a good action proposed? <verify>approve</verify> or <verify>reject</verify>",
            "actor": f"Take the next action.{how}",
        }
        return {role: text for role, text in texts.items() if role in self._order.roles}

    @property
    def largest_set(self) -> int:
        """See `Workflow`."""
        return self._members

    def start(self, observation: str) -> Memory:
        """See `Workflow`."""
        return Memory(observation, self._order.begin())

    def next_set(self, memory: Memory) -> ActiveSet:
        """See `Workflow`."""
        past = [f"> {action}\n{observation}" for action, observation in memory.history]
        proposals = [f"{author}: {action}" for author, action in memory.proposals]
        return self._order.active(memory.turn, "\n".join([memory.goal, *past, *proposals]))

    def moves(self, active: ActiveSet, outputs: Sequence[tuple[str, bool]]) -> tuple[Move, ...]:
        """See `Workflow`."""
        return tuple(self._move(member.role, *said) for member, said in zip(active.members, outputs, strict=True))

    def commit(
        self, memory: Memory, active: ActiveSet, moves: Sequence[Move], results: Sequence[StepResult | None]
    ) -> Memory:
        """See `Workflow`."""
        turn = self._order.after(memory.turn, moves)
        if turn is None:
            assert results[0] is not None
            history = (*memory.history, (moves[0].action, results[0].observation))
            return Memory(memory.goal, self._order.begin(), history[-self._shown :])
        new: list[tuple[str, str]] = []
        if memory.turn.who == "set":
            said = zip(active.members, moves, strict=True)
            new = [(member.agent, move.action) for member, move in said if move.valid]
        return replace(memory, turn=turn, proposals=(*memory.proposals, *new))

    def demonstrate(
        self, memory: Memory, active: ActiveSet, expert: str | None, rng: random.Random
    ) -> tuple[Demonstration, ...] | None:
        """Proposers say the expert's action or, not to be imitated, an earlier one; the actor takes the expert's."""
        if expert is None:
            return None
        proposed = expert in (action for _, action in memory.proposals)
        match memory.turn.who:
            case "router":
                return (Demonstration(demonstrated_route(self._members, proposed, rng)),)
            case "verifier":
                return (Demonstration(f"<verify>{_VERDICTS[not proposed]}</verify>"),)
            case "last":
                return (Demonstration(format_action(expert, self._format)),)
            case _:
                return tuple(self._proposal(memory, expert, rng) for _ in active.members)

    def _proposal(self, memory: Memory, expert: str, rng: random.Random) -> Demonstration:
        others = [action for action, _ in memory.history if action and action != expert] or ["wait"]
        mistaken = rng.random() < MISTAKES
        action = rng.choice(others) if mistaken else expert
        return Demonstration(format_action(action, self._format), trainable=not mistaken)

    def _move(self, role: str, text: str, finished: bool) -> Move:
        match role:
            case "actor":
                action, valid = parse_action(text, finished, self._format)
                return Move(action, valid, to_environment=True)
            case "proposer":
                action, valid = parse_action(text, finished, self._format)
                return Move(action if valid else "", valid)
            case "verifier":
                said = grammar.verdict(text, finished, _VERDICTS)
            case _:
                said = grammar.route(text, finished, self._members)
        return Move(said or "", said is not None)
