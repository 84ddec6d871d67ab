"""Prefix trees: sequences that begin with the same tokens are computed with those tokens once.

Sorted by their tokens, sequences with a common prefix are neighbours, and each shares most with the one before it; a
row holds a run of them, and its flat pre-order is their order. A token sees its ancestors and itself, and its position
is its depth, so hidden states, log-probs and gradients are those of every sequence alone (Tree Training, arXiv
2511.00413). A response is trained at its place in the tree; where two sequences hold the same tokens as responses, both
gradients meet there.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from agentbench_rl.training.packing import (
    Layout,
    PackedBatch,
    Places,
    batches_of_rows,
    check_lengths,
    forest,
    packed_batches,
    row_batches,
)
from agentbench_rl.training.sequences import Sequence

#: A sequence joins the row of the one before it when it shares at least this part of its tokens. Less is not worth the
#: longer attention: all prompts begin with the same few tokens.
LEAST_SHARED = 0.25
#: Attention under a dense mask costs the square of a row's length. A tree longer than this and than twice the longest
#: sequence is cut, and the common prefix computed again.
LONGEST_ROW = 1024
#: Below this ratio of tokens to compute, `auto` chooses trees.
WORTH = 0.7


def tree_batches(sequences: Items[Sequence], micro_batch_tokens: int) -> list[PackedBatch]:
    """Micro-batches whose rows are prefix trees, of at most `micro_batch_tokens` with padding.

    Raises AgentRLError for a sequence longer than the budget.
    """
    rows = [forest(*row) for row in _runs(sequences, micro_batch_tokens)]
    return batches_of_rows(rows, micro_batch_tokens)


def auto_batches(sequences: Items[Sequence], micro_batch_tokens: int) -> list[PackedBatch]:
    """Trees where they leave less than 70 % of the tokens to compute, else rows.

    Raises AgentRLError for a sequence longer than the budget.
    """
    runs = _runs(sequences, micro_batch_tokens)
    flat = sum(len(sequence.token_ids) for sequence in sequences)
    if flat - sum(sum(shared) for _, shared in runs) < WORTH * flat:
        return batches_of_rows([forest(*row) for row in runs], micro_batch_tokens)
    return row_batches(sequences, micro_batch_tokens)


def _runs(sequences: Items[Sequence], micro_batch_tokens: int) -> list[tuple[list[Sequence], list[int]]]:
    """Runs of sequences that share a row, with the number of tokens that each shares with the one before it."""
    longest = check_lengths(sequences, micro_batch_tokens)
    limit = min(max(LONGEST_ROW, 2 * longest), micro_batch_tokens)
    runs: list[tuple[list[Sequence], list[int]]] = []
    before = np.zeros(0, np.int64)
    size = 0
    for sequence in sorted(sequences, key=lambda item: item.token_ids.tobytes()):
        ids = sequence.token_ids
        common = _common(before, ids)
        if not runs or common < LEAST_SHARED * len(ids) or size + len(ids) - common > limit:
            runs.append(([], []))
            common = size = 0
        runs[-1][0].append(sequence)
        runs[-1][1].append(common)
        size += len(ids) - common
        before = ids
    return runs


def _common(left: Places, right: Places) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


#: By `training.packing`.
LAYOUTS: dict[str, Layout] = {
    "auto": auto_batches,
    "rows": row_batches,
    "packed": packed_batches,
    "tree": tree_batches,
}
