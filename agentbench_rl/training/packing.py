"""Sequences to micro-batches of a token budget: one per row, several per row, or trees of shared prefixes.

A row is a forest in pre-order: token q sees token k where k <= q < end(k), `end` being the end of k's subtree; its
position is its depth. `rows`: a sequence to a row, which needs no mask (causal attention never looks at padding on the
right). `packed`: unrelated sequences to a row, filled best-fit-decreasing. `tree`: sequences that begin alike share
those tokens (`prefix_tree`). All give the same log-probs; a mask costs time, so `rows` is faster where nothing is
shared. All are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.training.sequences import Sequence
from agentbench_rl.types import AgentRLError

MULTIPLE = 16  # of a packed row's capacity
SLACK = 8  # a row may be at most 1/8 longer than the shortest of its batch
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """A response's place [start, stop) among the T trained tokens of a batch."""

    turn_id: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """B rows of L tokens; padding sees itself alone.

    input_ids, position_ids (depth in the tree), ends (of a token's subtree) [B, L]; `positions` [T]: flat index b * L +
    l of the hidden state that predicts each trained token, `after` [T]: that of the token itself; `targets` [T]: those
    tokens; `spans`: responses in order of T. `tokens`: without padding; `flat_tokens`: of the sequences, shared or not.
    masked: causal attention alone is not enough.
    """

    input_ids: Tensor
    position_ids: Tensor
    ends: Tensor
    positions: Tensor
    after: Tensor
    targets: Tensor
    spans: tuple[Span, ...]
    tokens: int
    flat_tokens: int
    masked: bool

    def attention_mask(self) -> Tensor:
        """Mask [B, 1, L, L], true where a query sees a key."""
        length = self.ends.shape[1]
        inside = torch.arange(length)[:, None] < self.ends[:, None, None, :]
        return inside & torch.ones(length, length, dtype=torch.bool).tril()


@dataclass(frozen=True, slots=True)
class Row:
    """A forest of n tokens in pre-order: ids, depths and ends of subtrees [n], and where its responses stand.

    places: of every response (turn_id, places that predict its tokens, their own places).
    """

    token_ids: Places
    depths: Places
    ends: Places
    places: tuple[tuple[str, Places, Places], ...]
    flat_tokens: int


def forest(sequences: Items[Sequence], shared: Items[int]) -> Row:
    """Flatten sequences; `shared`: how many tokens of each are those of the sequence before it."""
    count = flat = 0
    path = np.zeros(0, np.int64)
    ids, depths, places = [], [], []
    ends = np.zeros(sum(len(one.token_ids) for one in sequences), np.int64)
    for sequence, common in zip(sequences, shared, strict=True):
        length = len(sequence.token_ids)
        ends[path[common:]] = count
        path = np.concatenate([path[:common], np.arange(count, count + length - common)])
        ids.append(sequence.token_ids[common:])
        depths.append(np.arange(common, length))
        for item in sequence.responses:
            places.append((item.turn_id, path[item.start - 1 : item.stop - 1], path[item.start : item.stop]))
        count += length - common
        flat += length
    ends[path] = count
    return Row(np.concatenate(ids), np.concatenate(depths), ends[:count], tuple(places), flat)


def row_batches(sequences: Items[Sequence], micro_batch_tokens: int) -> list[PackedBatch]:
    """Micro-batches of one sequence per row, sorted by length, of at most `micro_batch_tokens` with padding.

    Raises AgentRLError for a sequence longer than the budget.
    """
    check_lengths(sequences, micro_batch_tokens)
    return batches_of_rows([forest([sequence], [0]) for sequence in sequences], micro_batch_tokens)


def batches_of_rows(rows: Items[Row], micro_batch_tokens: int) -> list[PackedBatch]:
    """Micro-batches of rows of similar length."""
    batches: list[list[Row]] = []
    shortest = 0
    for row in sorted(rows, key=lambda item: len(item.token_ids)):
        length = len(row.token_ids)
        if not batches or (len(batches[-1]) + 1) * length > micro_batch_tokens or length - shortest > shortest // SLACK:
            batches.append([])
            shortest = length
        batches[-1].append(row)
    return [_batch(part, max(len(row.token_ids) for row in part)) for part in batches]


def packed_batches(sequences: Items[Sequence], micro_batch_tokens: int) -> list[PackedBatch]:
    """Micro-batches of rows of equal capacity (the longest sequence, rounded up), each filled best-fit-decreasing.

    Raises AgentRLError for a sequence longer than the budget.
    """
    longest = check_lengths(sequences, micro_batch_tokens)
    capacity = min(-(-longest // MULTIPLE) * MULTIPLE, micro_batch_tokens)
    rows: list[list[Sequence]] = []
    free: list[int] = []
    for sequence in sorted(sequences, key=lambda item: -len(item.token_ids)):
        length = len(sequence.token_ids)
        fitting = [(space, index) for index, space in enumerate(free) if space >= length]
        if fitting:
            _, index = min(fitting)
        else:
            index = len(rows)
            rows.append([])
            free.append(capacity)
        rows[index].append(sequence)
        free[index] -= length
    count = max(1, micro_batch_tokens // max(1, capacity))
    forests = [forest(row, [0] * len(row)) for row in rows]
    return [_batch(forests[first : first + count], capacity) for first in range(0, len(forests), count)]


def check_lengths(sequences: Items[Sequence], micro_batch_tokens: int) -> int:
    """Length of the longest sequence; raises AgentRLError for one longer than the budget."""
    longest = max((len(sequence.token_ids) for sequence in sequences), default=0)
    if longest > micro_batch_tokens:
        raise AgentRLError(
            f"a sequence of {longest} tokens does not fit into micro-batches of {micro_batch_tokens} tokens: "
            "raise training.micro_batch_tokens (sft.batch_tokens for behaviour cloning)"
        )
    return longest


def _batch(rows: Items[Row], capacity: int) -> PackedBatch:
    shape = (len(rows), capacity)
    input_ids, position_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    ends = np.tile(np.arange(1, capacity + 1), (len(rows), 1))
    positions, after, targets, spans = [], [], [], []
    trained = 0
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        input_ids[index, :length] = row.token_ids
        position_ids[index, :length] = row.depths
        ends[index, :length] = row.ends
        for turn_id, before, own in row.places:
            positions.append(index * capacity + before)
            after.append(index * capacity + own)
            targets.append(row.token_ids[own])
            spans.append(Span(turn_id, trained, trained + len(own)))
            trained = spans[-1].stop

    def flat(parts: list[Places]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts]))

    return PackedBatch(
        torch.from_numpy(input_ids),
        torch.from_numpy(position_ids),
        torch.from_numpy(ends),
        flat(positions),
        flat(after),
        flat(targets),
        tuple(spans),
        tokens=sum(len(row.token_ids) for row in rows),
        flat_tokens=sum(row.flat_tokens for row in rows),
        masked=any((row.ends < len(row.token_ids)).any() for row in rows),
    )


#: Sequences and the token budget of a micro-batch, to micro-batches.
Layout = Callable[[Items[Sequence], int], list[PackedBatch]]
