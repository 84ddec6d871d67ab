"""An episode of a team as a conversation to read: one event after another, each with all of its members."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from agentbench_rl.evaluation.trees import printable
from agentbench_rl.types import AGENT, TEAM_ROUND


@dataclass(frozen=True)
class Saying:
    """What one member said and what it led to, with its own advantage where the members' differ."""

    agent: str
    text: str
    observation: str
    valid: bool
    advantage: float | None


@dataclass(frozen=True)
class Event:
    """One transition and the members that it consumed; a number is None where the files have none.

    size: planned members K. advantage: of all members, where they share one. weight: the largest of the members'.
    """

    event_id: str
    step: int
    event_type: str
    round: int
    size: int
    members: tuple[Saying, ...]
    advantage: float | None
    weight: float | None

    @property
    def heading(self) -> str:
        """Step, type, round and size, how many members are missing, advantage and whether the event was left out."""
        parts = [f"[{self.step}] {self.event_type}, round {self.round}, K = {self.size}"]
        if missing := self.size - len(self.members):
            parts.append(f"({missing} missing)")
        if self.advantage is not None:
            parts.append(f"A {self.advantage:+.2f}")
        if self.weight == 0.0:
            parts.append("(not trained on)")
        return "   ".join(parts)

    @property
    def lines(self) -> Iterator[str]:
        """What every member said, under its name, and what the environment answered."""
        for member in self.members:
            own = "" if member.advantage is None else f"   A {member.advantage:+.2f}"
            yield f"{member.agent}{'' if member.valid else ' (malformed)'}{own}"
            yield from (f"    {line}" for line in member.text.splitlines())
            yield from (f"    → {line}" for line in member.observation.splitlines())


def events_to_read(
    rollouts: pd.DataFrame, advantages: pd.DataFrame | None = None, read: Callable[[list[int]], str] | None = None
) -> list[Event]:
    """The events of one episode of a team, in their order, from its rows of the file contract.

    advantages: columns turn_id, loss_weight and advantage. read: text of response ids; None: parsed actions are shown.
    """
    credit: dict[str, Mapping[Hashable, Any]] = {}
    if advantages is not None:
        credit = {row["turn_id"]: row for row in advantages.to_dict("records")}
    events: list[Event] = []
    ordered = rollouts.sort_values(["step", "member"], kind="stable")
    for event_id, rows in ordered.groupby("event_id", sort=False):
        told = [credit.get(turn, {}) for turn in rows["turn_id"]]
        values = [row.get("advantage") for row in told]
        shared = len(set(values)) == 1
        weights = [float(row["loss_weight"]) for row in told if row]
        first = rows.iloc[0]
        events.append(
            Event(
                event_id=str(event_id),
                step=int(first["step"]),
                event_type=str(first["event_type"]),
                round=int(first[TEAM_ROUND]),
                size=int(first["event_size"]),
                members=tuple(
                    Saying(
                        agent=printable(str(row[AGENT])),
                        text=printable(read(list(row["response_ids"])) if read else row["action"]),
                        observation=printable(row["observation"]),
                        valid=bool(row["valid"]),
                        advantage=None if shared else value,
                    )
                    for row, value in zip(rows.to_dict("records"), values, strict=True)
                ),
                advantage=values[0] if shared else None,
                weight=max(weights) if weights else None,
            )
        )
    return events
