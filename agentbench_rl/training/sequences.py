"""From the rollout graph to token sequences: turns are merged while a prompt extends its parent; never re-tokenised.

Each leaf is one path root -> leaf; a prompt that does not extend its parent starts a new sequence. Where paths share
turns, those are trained once, in the first path (in the order of the leaves' rows) that holds them; in later paths
they are context only.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    import pandas as pd

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Response:
    """A trained response: its tokens stand at [start, stop) of the sequence."""

    turn_id: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """`token_ids` [L] of prompts and responses in order, and the responses to train, in order."""

    token_ids: Tokens
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True)
class _Turn:
    turn_id: str
    parent: str | None
    extends: bool
    prompt: Tokens
    response: Tokens


def training_sequences(rollouts: pd.DataFrame) -> list[Sequence]:
    """Merge the turns of every root -> leaf path into sequences; every response is trained exactly once.

    Raises AgentRLError for a repeated turn, a missing parent that a prompt extends, a cycle, a root that claims to
    extend a parent, and a response without any token before it.
    """
    turns = _turns(rollouts)
    parents = {turn.parent for turn in turns.values()}
    placed: set[str] = set()
    sequences = []
    for turn_id in turns:
        if turn_id not in parents:
            path = _path(turns, turn_id)
            sequences += [sequence for part in _parts(path) if (sequence := _merge(part, placed)) is not None]
    if len(placed) < len(turns):
        lost = next(turn_id for turn_id in turns if turn_id not in placed)
        raise AgentRLError(f"rollouts: turn {lost} is on no path from a root to a leaf: parent_id forms a cycle")
    return sequences


def responses_of(sequences: Items[Sequence], turns: Container[str]) -> list[Sequence]:
    """The sequences with responses among `turns`, reduced to these: the others are context."""
    kept = (replace(one, responses=tuple(item for item in one.responses if item.turn_id in turns)) for one in sequences)
    return [one for one in kept if one.responses]


def cut_sequences(sequences: Items[Sequence]) -> list[Sequence]:
    """The sequences up to the last response that is trained: nothing looks at what comes after it."""
    return [replace(one, token_ids=one.token_ids[: one.responses[-1].stop]) for one in sequences]


def _turns(rollouts: pd.DataFrame) -> dict[str, _Turn]:
    columns = ("turn_id", "parent_id", "extends_parent", "prompt_ids", "response_ids")
    turns: dict[str, _Turn] = {}
    for turn_id, parent, extends, prompt, response in zip(*(rollouts[name] for name in columns), strict=True):
        if turn_id in turns:
            raise AgentRLError(f"rollouts: turn_id {turn_id} occurs twice; ids must be unique in a file")
        known = parent if isinstance(parent, str) else None
        if extends and known is None:
            raise AgentRLError(f"rollouts: turn {turn_id} has no parent_id, yet extends_parent is true")
        turns[turn_id] = _Turn(
            turn_id, known, bool(extends), np.asarray(prompt, np.int64), np.asarray(response, np.int64)
        )
    return turns


def _path(turns: dict[str, _Turn], leaf: str) -> list[_Turn]:
    path = [turns[leaf]]
    while (parent := path[-1].parent) is not None:
        if parent not in turns and not path[-1].extends:
            break  # its prompt is whole: a dropped member of the event before is not needed
        if parent not in turns:
            raise AgentRLError(
                f"rollouts: the parent {parent} of turn {path[-1].turn_id} is missing; a file must hold whole paths"
            )
        if len(path) > len(turns):
            raise AgentRLError(f"rollouts: the parents of turn {leaf} form a cycle")
        path.append(turns[parent])
    return path[::-1]


def _parts(path: list[_Turn]) -> Iterator[list[_Turn]]:
    starts = [index for index, turn in enumerate(path) if not turn.extends]
    for start, stop in zip(starts, [*starts[1:], len(path)], strict=True):
        yield path[start:stop]


def _merge(part: list[_Turn], placed: set[str]) -> Sequence | None:
    """One sequence of consecutive turns, or None when earlier paths hold all of its responses."""
    pieces: list[Tokens] = []
    responses = []
    length = 0
    for turn in part:
        start = length + len(turn.prompt)
        length = start + len(turn.response)
        pieces += [turn.prompt, turn.response]
        if turn.turn_id in placed:
            continue
        if start == 0 and length > 0:
            raise AgentRLError(f"rollouts: the response of turn {turn.turn_id} has no token before it")
        placed.add(turn.turn_id)
        responses.append(Response(turn.turn_id, start, length))
    return Sequence(np.concatenate(pieces), tuple(responses)) if responses else None
