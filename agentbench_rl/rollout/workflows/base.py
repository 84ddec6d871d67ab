"""What a workflow is: who acts next on one frozen state of a team, and what becomes of the state when they have.

The shared state is the environment's plus the team's memory, a frozen value. `next_set` names the members of the next
event and renders what each of them sees from that one state, so no member sees another's output of the same event
(SRPO, arXiv 2609.08452, section 3.1; rules R1 to R8). `moves` reads their outputs strictly. The scheduler executes the
moves that are meant for the environment in the order of the members, and `commit`, the only place where memory changes,
makes the next memory of everything together. What is never committed forms no event.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentbench_rl.types import StepResult

Memory = TypeVar("Memory")


@dataclass(frozen=True, slots=True)
class Member:
    """One who acts in an event.

    agent: its name in the team. role: decides instructions and policy. prompt: what it sees, as text.
    """

    agent: str
    role: str
    prompt: str


@dataclass(frozen=True, slots=True)
class ActiveSet:
    """The members whose outputs the next transition consumes together; `round` counts from 0."""

    event_type: str
    round: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """What a member's output says: the parsed action ("" where it follows no grammar), and whether it was well-formed.

    to_environment: it is executed there; otherwise it only goes into the team's memory.
    """

    action: str
    valid: bool
    to_environment: bool = False


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What an expert says as a member; `trainable`: whether it is to be imitated, or a mistake that others react to."""

    text: str
    trainable: bool = True


class Workflow(Protocol[Memory]):
    """The roles of a team and their order; without state of its own, so one instance serves all episodes."""

    @property
    def instructions(self) -> dict[str, str]:
        """System prompt of every role, in a fixed order."""

    @property
    def largest_set(self) -> int:
        """Members of the largest event there can be."""

    def start(self, observation: str) -> Memory:
        """Memory at the start of an episode, after the environment's first observation."""

    def next_set(self, memory: Memory) -> ActiveSet | None:
        """Who acts next; None: nobody, the team has nothing more to do and the episode ends as a failure."""

    def moves(self, active: ActiveSet, outputs: Sequence[tuple[str, bool]]) -> tuple[Move, ...]:
        """Read the outputs (text, whether it ended by itself) of all members, in their order; never repaired."""

    def commit(
        self, memory: Memory, active: ActiveSet, moves: Sequence[Move], results: Sequence[StepResult | None]
    ) -> Memory:
        """The next memory; `results`: of the moves that the environment executed, None for the others."""

    def demonstrate(
        self, memory: Memory, active: ActiveSet, expert: str | None, rng: random.Random
    ) -> tuple[Demonstration, ...] | None:
        """What good members say, in their order, given the environment's expert action; None: no expert knows."""
