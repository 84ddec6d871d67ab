"""Entropies (nats) of the policy's next-token distributions at the sampled tokens."""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch
from agentbench_rl.algorithms.ragged import row_sums
from agentbench_rl.algorithms.whitening import segment_moments
from agentbench_rl.types import AgentRLError


def token_entropies(batch: Batch) -> np.ndarray:
    """Entropy of every response token [S]; raises AgentRLError where the batch has none."""
    if "entropies" not in batch.scores:
        raise AgentRLError(
            "this method needs token entropies (scores.parquet, column entropies); run the score stage first"
        )
    return batch.scores["entropies"]


def turn_entropies(batch: Batch) -> np.ndarray:
    """Mean entropy of every response's tokens [rows]; 0 for an empty response, in which nothing was uncertain."""
    return np.asarray(row_sums(token_entropies(batch), batch.lengths) / np.maximum(batch.lengths, 1))


def entropy_scores(batch: Batch) -> np.ndarray:
    """Whitened entropy of every response token [S], float32: mean 0 and variance 1 over all tokens of the batch."""
    entropies = token_entropies(batch).astype(np.float64)
    mean, std = segment_moments(entropies, batch.lengths[batch.lengths > 0]).pooled()
    return np.asarray((entropies - mean) / std, dtype=np.float32)
