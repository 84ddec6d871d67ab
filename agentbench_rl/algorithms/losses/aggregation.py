"""Aggregation of token losses l with response weights w, lengths T_i and global normalisers.

token_mean: sum w l / N_tokens. sequence_mean_token_mean: sum_i w_i (sum_t l / T_i) / N_sequences.
sequence_mean_token_sum: sum_i w_i (sum_t l) / N_sequences; ..._norm: the same / norm_constant (Dr. GRPO).
A sequence is one response. The normalisers count a whole optimizer step (all micro-batches of all processes), so the
shares of the micro-batches add up to the step's loss however it was split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from agentbench_rl.algorithms.losses.parts import TrainedTokens
from agentbench_rl.config.loss import LossConfig
from agentbench_rl.types import AgentRLError


@dataclass(frozen=True)
class Normalisers:
    """Weighted numbers of trained tokens and of responses of one optimizer step."""

    tokens: float
    sequences: float


def count_normalisers(weights: Sequence[float], lengths: Sequence[int]) -> Normalisers:
    """Count the responses of one optimizer step by loss weight and number of trained tokens; empty ones don't count.

    Raises AgentRLError when nothing is left to train on.
    """
    pairs = [(weight, length) for weight, length in zip(weights, lengths, strict=True) if length > 0]
    normalisers = Normalisers(
        tokens=float(sum(weight * length for weight, length in pairs)),
        sequences=float(sum(weight for weight, _ in pairs)),
    )
    if normalisers.sequences <= 0:
        raise AgentRLError(f"no response with a positive loss weight among the {len(weights)} of an optimizer step")
    return normalisers


def token_coefficients(tokens: TrainedTokens, config: LossConfig, normalisers: Normalisers) -> Tensor:
    """Coefficient [T] of every token's loss: the aggregated loss is their weighted sum."""
    if config.aggregation == "token_mean":
        return tokens.weight / normalisers.tokens
    per_sequence = tokens.weight / normalisers.sequences
    if config.aggregation == "sequence_mean_token_sum":
        return per_sequence
    if config.aggregation == "sequence_mean_token_mean":
        return per_sequence / tokens.lengths[tokens.row].to(per_sequence.dtype)
    if config.norm_constant is None:
        raise AgentRLError("loss.aggregation: sequence_mean_token_sum_norm needs loss.norm_constant")
    return per_sequence / config.norm_constant
