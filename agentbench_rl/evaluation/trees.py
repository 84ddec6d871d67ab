"""One rollout tree as a value that can be drawn: its turns with what was measured and credited, in runs without a fork.

A turn belongs to the run of its parent when it is the only turn that was sampled in its parent's next state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from agentbench_rl.types import ALLOCATION, STATE_SCORE, STEP_REWARD, AgentRLError

#: An action is whatever a policy wrote; these characters drive a terminal, or may not stand in XML.
_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Turn:
    """One response; a number is None where the files have none.

    entropy: nats, at the boundary before it. score, allocation: of the state it was sampled in, with the reward of the
    step (3SPO). returns: of all scored leaves below. ending: of the episode whose last turn it is.
    """

    turn_id: str
    step: int
    action: str
    observation: str
    valid: bool
    entropy: float | None
    score: float | None
    allocation: float | None
    reward: float | None
    advantage: float | None
    weight: float | None
    returns: tuple[float, ...]
    ending: str | None

    @property
    def mean_return(self) -> float | None:
        """Mean return of the leaves below, where any was scored."""
        return sum(self.returns) / len(self.returns) if self.returns else None


@dataclass(frozen=True)
class Run:
    """Turns without a fork between them, and the runs that were sampled in the state the last of them led to."""

    turns: tuple[Turn, ...]
    forks: tuple[Run, ...]

    def walk(self) -> Iterator[Run]:
        """This run and all below, parents first."""
        yield self
        for fork in self.forks:
            yield from fork.walk()


@dataclass(frozen=True)
class Tree:
    """All turns of a tree; `starts` has several runs where several responses were sampled in the task's first state."""

    tree_id: str
    task_id: str
    task_type: str
    starts: tuple[Run, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, parents first."""
        return [run for start in self.starts for run in start.walk()]

    @property
    def turns(self) -> list[Turn]:
        """All turns, parents first."""
        return [turn for run in self.runs for turn in run.turns]


def tree_of(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, tree_id: str, advantages: pd.DataFrame | None = None
) -> Tree:
    """The tree `tree_id` of frames of the file contract; the order of rows does not matter.

    advantages: columns turn_id, loss_weight and advantage (of a whole response). Raises AgentRLError for an unknown
    tree, and for parents that are missing or form a cycle.
    """
    rows = {row["turn_id"]: row for row in _records(rollouts.loc[rollouts["tree_id"] == tree_id])}
    if not rows:
        raise AgentRLError(f"the rollouts hold no tree {tree_id!r}")
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    for turn_id, row in rows.items():
        parent = row.get("parent_id")
        if parent is not None and parent not in rows:
            raise AgentRLError(f"turn {turn_id!r}: its parent {parent!r} is no turn of tree {tree_id!r}")
        children[parent].append(turn_id)
    for siblings in children.values():
        siblings.sort(key=lambda turn_id: (rows[turn_id].get("branch") or 0, rows[turn_id].get("member") or 0, turn_id))
    leaves = {row["leaf_turn_id"]: row for row in _records(episodes.loc[episodes["tree_id"] == tree_id])}
    credit: dict[str, Mapping[str, Any]] = {}
    if advantages is not None:
        credit = {row["turn_id"]: row for row in _records(advantages.loc[advantages["turn_id"].isin(list(rows))])}
    order = _parents_first(children)
    if len(order) < len(rows):
        raise AgentRLError(f"tree {tree_id!r}: the parent_id of some turns form a cycle; a path must end at a root")
    turns: dict[str, Turn] = {}
    for turn_id in reversed(order):
        below = tuple(value for child in children[turn_id] for value in turns[child].returns)
        turns[turn_id] = _turn(rows[turn_id], leaves.get(turn_id), credit.get(turn_id, {}), below)
    first = rows[order[0]]
    starts = tuple(_run(turn_id, turns, children) for turn_id in children[None])
    return Tree(tree_id, str(first.get("task_id", "")), str(first.get("task_type", "")), starts)


def printable(text: str) -> str:
    """The text with a replacement character for each that would drive a terminal or break an XML file."""
    return _UNPRINTABLE.sub("\ufffd", text)


def path_of(rollouts: pd.DataFrame, leaf_turn_id: str) -> pd.DataFrame:
    """The rows from a root to a turn, in the order of steps; none where the turn is not among the rows.

    Raises AgentRLError for a cycle.
    """
    place = {turn_id: position for position, turn_id in enumerate(rollouts["turn_id"])}
    parents = rollouts["parent_id"].tolist()
    path: list[int] = []
    turn: str | None = leaf_turn_id
    while turn is not None and not pd.isna(turn) and turn in place:
        if len(path) > len(place):
            raise AgentRLError(f"turn {leaf_turn_id!r}: the parent_id of its turns form a cycle")
        path.append(place[turn])
        turn = parents[place[turn]]
    return rollouts.iloc[path[::-1]]


def forked_trees(rollouts: pd.DataFrame) -> list[str]:
    """Trees in which several events were sampled in one state, in the order of the file."""
    if "parent_id" not in rollouts:
        return []
    if "member" in rollouts:
        rollouts = rollouts[rollouts["member"].fillna(0) == 0]
    several = rollouts.duplicated(["tree_id", "parent_id"], keep=False)
    return [str(tree_id) for tree_id in rollouts.loc[several, "tree_id"].drop_duplicates()]


def telling_tree(rollouts: pd.DataFrame, episodes: pd.DataFrame) -> str | None:
    """Which tree shows most of what a method does: the first in the file with a success and a failure at its leaves.

    Where there is none: the first of those with most leaves, and of these with most turns; None where nothing forked.
    """
    forked = forked_trees(rollouts)
    for tree_id in forked:
        if {True, False} <= set(episodes.loc[episodes["tree_id"] == tree_id, "success"].dropna()):
            return tree_id
    sizes = [((episodes["tree_id"] == name).sum(), (rollouts["tree_id"] == name).sum()) for name in forked]
    return forked[sizes.index(max(sizes))] if forked else None


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries with None for what is missing."""
    records = frame.to_dict("records")
    return [{str(key): None if _missing(value) else value for key, value in row.items()} for row in records]


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def _parents_first(children: Mapping[str | None, list[str]]) -> list[str]:
    order: list[str] = []
    waiting = list(children.get(None, ()))
    while waiting:
        turn_id = waiting.pop()
        order.append(turn_id)
        waiting += children.get(turn_id, ())
    return order


def _turn(
    row: Mapping[str, Any], leaf: Mapping[str, Any] | None, credit: Mapping[str, Any], below: tuple[float, ...]
) -> Turn:
    own = () if leaf is None or leaf["return"] is None else (float(leaf["return"]),)
    return Turn(
        turn_id=row["turn_id"],
        step=int(row["step"]),
        action=printable(row.get("action") or ""),
        observation=printable(row.get("observation") or ""),
        valid=bool(row.get("valid", True)),
        entropy=row.get("boundary_entropy"),
        score=row.get(STATE_SCORE),
        allocation=row.get(ALLOCATION),
        reward=row.get(STEP_REWARD),
        advantage=credit.get("advantage"),
        weight=credit.get("loss_weight"),
        returns=own + below,
        ending=None if leaf is None else leaf["ending"],
    )


def _run(turn_id: str, turns: Mapping[str, Turn], children: Mapping[str | None, list[str]]) -> Run:
    members = [turns[turn_id]]
    while len(following := children.get(members[-1].turn_id, [])) == 1:
        members.append(turns[following[0]])
    return Run(tuple(members), tuple(_run(child, turns, children) for child in following))
