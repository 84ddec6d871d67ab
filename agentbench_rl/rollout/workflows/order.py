"""Whose turn it is: the order of events that the shipped workflows share.

fixed: the set acts in every round, then the last role. mixed: before every round but the first a verifier says whether
it is needed. routed: before every round a router names who of the set acts, or stops. A decision outside the grammar
decides nothing: it uses up the round, and who decides is asked again while rounds are left. Then the last role acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentbench_rl.config.team import TeamConfig
from agentbench_rl.rollout.workflows.base import ActiveSet, Member, Move
from agentbench_rl.rollout.workflows.grammar import chosen_agents

Who = Literal["set", "router", "verifier", "reviser", "last"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Who acts, in which round (from 0), and which agents of the set (from 1)."""

    who: Who
    round: int
    chosen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A role and the type of its events."""

    role: str
    event: str


class Order:
    """The turns of a team. of_set, last: who acts at once, and who ends the rounds.

    approval: the verifier's word that no further round is needed. reviser: acts after a rejection, in place of the set.
    """

    def __init__(self, team: TeamConfig, of_set: Part, last: Part, approval: str, reviser: Part | None = None) -> None:
        self._team = team
        self._approval = approval
        self._parts: dict[Who, Part] = {"set": of_set, "last": last}
        if team.orchestration == "mixed":
            self._parts["verifier"] = Part("verifier", "verify")
            if reviser is not None:
                self._parts["reviser"] = reviser
        if team.orchestration == "routed":
            self._parts["router"] = Part("router", "router")

    @property
    def roles(self) -> set[str]:
        """Roles that there are."""
        return {part.role for part in self._parts.values()}

    def begin(self) -> Turn:
        """The first turn."""
        return self._round(0)

    def after(self, turn: Turn, moves: Sequence[Move]) -> Turn | None:
        """The turn after the moves of this one; None after the last."""
        if turn.who == "last":
            return None
        if turn.who in ("set", "reviser") or not moves[0].valid:
            return self._round(turn.round + 1)
        if turn.who == "router":
            chosen = chosen_agents(moves[0].action)
            return Turn("set", turn.round, chosen) if chosen else Turn("last", turn.round)
        if moves[0].action == self._approval:
            return Turn("last", turn.round)
        return Turn("reviser", turn.round) if "reviser" in self._parts else self._whole_set(turn.round)

    def active(self, turn: Turn, prompt: str) -> ActiveSet:
        """Everyone sees the same; agents of the set are told their own names besides."""
        part = self._parts[turn.who]
        if turn.who != "set":
            return ActiveSet(part.event, turn.round, (Member(part.role, part.role, prompt),))
        members = [
            Member(f"{part.role}{number}", part.role, f"{prompt}\nYou are {part.role} {number}.")
            for number in turn.chosen
        ]
        return ActiveSet(part.event, turn.round, tuple(members))

    def _round(self, number: int) -> Turn:
        if number >= self._team.rounds:
            return Turn("last", number)
        if self._team.orchestration == "routed":
            return Turn("router", number)
        if self._team.orchestration == "mixed" and number > 0:
            return Turn("verifier", number)
        return self._whole_set(number)

    def _whole_set(self, number: int) -> Turn:
        return Turn("set", number, tuple(range(1, self._team.members + 1)))
