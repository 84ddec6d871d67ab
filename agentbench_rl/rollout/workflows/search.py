"""Search: searchers query at once, what they find is merged, an answerer answers for the team.

fixed: searchers, in every round → answerer. mixed: searchers → verifier (→ searchers …) → answerer. routed: router →
chosen searchers → router … → answerer. Every well-formed query is one step of the environment.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentbench_rl.config.environment import EnvironmentConfig, SearchEnvironment
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.envs.search.actions import NOTHING_FOUND, parse
from agentbench_rl.envs.search.experts import search_for
from agentbench_rl.rollout.workflows import grammar
from agentbench_rl.rollout.workflows.base import ActiveSet, Demonstration, Move
from agentbench_rl.rollout.workflows.demonstrations import MISTAKES, demonstrated_route
from agentbench_rl.rollout.workflows.order import Order, Part, Turn
from agentbench_rl.types import AgentRLError, StepResult

_VERDICTS = ("yes", "no")
_RANK = re.compile(r"^Doc [0-9]+(?=\(Title: )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Memory:
    """The question, who acts next, the queries so far, and the passages found, each once."""

    question: str
    turn: Turn | None
    queries: tuple[str, ...] = ()
    passages: tuple[str, ...] = ()


class Search:
    """Implements `Workflow`; raises AgentRLError for another environment, or one without steps for all queries."""

    def __init__(self, team: TeamConfig, environment: EnvironmentConfig) -> None:
        if not isinstance(environment, SearchEnvironment):
            raise AgentRLError(f"team.workflow: search needs environment.name: search, not {environment.name}")
        needed = team.members * team.rounds + 1
        if environment.max_turns < needed:
            raise AgentRLError(
                f"environment.max_turns is {environment.max_turns}, and every query is a step: {team.rounds} rounds "
                f"of {team.members} searchers and the answer (team.rounds, team.members) need {needed}"
            )
        self._members = team.members
        self._order = Order(team, Part("searcher", "search"), Part("answerer", "answer"), approval=_VERDICTS[0])

    @property
    def instructions(self) -> dict[str, str]:
        """See `Workflow`."""
        texts = {
            "router": f"Who acts next, of searchers 1 to {self._members}? <route>1</route> or <route>1,2</route>. "
            "When the passages suffice: <route>STOP</route>",
            "searcher": "What should be searched for next? <think></think><search>query</search>",
            "verifier": "Do the passages suffice to answer? <verify>yes</verify> or <verify>no</verify>",
            "answerer": "Answer the question, briefly. <think></think><answer>text</answer>",
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
        searched = [f"Searched: {'; '.join(memory.queries)}"] if memory.queries else []
        return self._order.active(memory.turn, "\n".join([memory.question, *searched, *memory.passages]))

    def moves(self, active: ActiveSet, outputs: Sequence[tuple[str, bool]]) -> tuple[Move, ...]:
        """See `Workflow`."""
        return tuple(self._move(member.role, *said) for member, said in zip(active.members, outputs, strict=True))

    def commit(
        self, memory: Memory, active: ActiveSet, moves: Sequence[Move], results: Sequence[StepResult | None]
    ) -> Memory:
        """See `Workflow`."""
        assert memory.turn is not None
        queries, passages = list(memory.queries), list(memory.passages)
        if memory.turn.who == "set":
            for move, result in zip(moves, results, strict=True):
                action = parse(move.action)
                if action is not None and result is not None:
                    queries.append(action.text)
                    passages += _passages(result.observation)
        turn = self._order.after(memory.turn, moves)
        return replace(memory, turn=turn, queries=_once(queries), passages=_once(passages))

    def demonstrate(
        self, memory: Memory, active: ActiveSet, expert: str | None, rng: random.Random
    ) -> tuple[Demonstration, ...] | None:
        """The first searcher says the expert's query, the others that or, not to be imitated, the question itself.

        None also where the answer is asked for and the expert would still search.
        """
        assert memory.turn is not None
        wanted = None if expert is None else parse(expert)
        if wanted is None:
            return None
        enough = wanted.kind == "answer"
        match memory.turn.who:
            case "router":
                return (Demonstration(demonstrated_route(self._members, enough, rng)),)
            case "verifier":
                return (Demonstration(f"<verify>{_VERDICTS[not enough]}</verify>"),)
            case "last":
                return (Demonstration(f"<think></think><answer>{wanted.text}</answer>"),) if enough else None
            case _:
                return self._queries(memory, wanted.text if not enough else None, len(active.members), rng)

    def _queries(self, memory: Memory, query: str | None, count: int, rng: random.Random) -> tuple[Demonstration, ...]:
        """query: the expert's next one; None: nothing is missing, so the last one is repeated."""
        question = memory.question.removeprefix("Question: ")
        best = query or (memory.queries[-1] if memory.queries else question)
        mistaken = [number > 0 and rng.random() < MISTAKES for number in range(count)]
        texts = [(question if wrong else best, not wrong) for wrong in mistaken]
        return tuple(Demonstration(f"<think></think><search>{text}</search>", good) for text, good in texts)

    def _move(self, role: str, text: str, finished: bool) -> Move:
        match role:
            case "searcher":
                said = grammar.thought_and(text, finished, "search")
                return Move(search_for(said), True, to_environment=True) if said else Move("", False)
            case "answerer":
                said = grammar.thought_and(text, finished, "answer")
                return Move(f"<answer> {said} </answer>", True, to_environment=True) if said else Move("", False)
            case "verifier":
                said = grammar.verdict(text, finished, _VERDICTS)
            case _:
                said = grammar.route(text, finished, self._members)
        return Move(said or "", said is not None)


def _passages(observation: str) -> list[str]:
    """The lines of what a search shows, without their ranks."""
    if observation == NOTHING_FOUND:
        return []
    shown = observation.removeprefix("<information>").removesuffix("</information>")
    return _RANK.sub("", shown).split("\n")


def _once(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
