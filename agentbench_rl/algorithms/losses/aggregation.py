"""Aggregation of token losses l with response weights w, lengths T_i and global normalisers.

token_mean: sum w l / N_tokens. sequence_mean_token_mean: sum_i w_i (sum_t l / T_i) / N_sequences.
sequence_mean_token_sum: sum_i w_i (sum_t l) / N_sequences; ..._norm: the same / norm_constant (Dr. GRPO).
A sequence is one response. The normalisers count a whole optimizer step (all micro-batches of all processes), so the
shares of the micro-batches add up to the step's loss however it was split.
Responses of several sources: L = weight_0 L_0 + sum_s weight_s L_s, every L_s with the normalisers of its own responses
(SPEAR, arXiv 2509.22601: the replayed responses form a loss of their own; RSPO, arXiv 2607.04713, equation 4: the
weights are 1 - share and share). Sources without a weight belong to L_0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from agentbench_rl.algorithms.losses.parts import TrainedTokens
from agentbench_rl.config.loss import ResponseLoss
from agentbench_rl.types import AgentRLError


@dataclass(frozen=True)
class Normalisers:
    """Weighted numbers of trained tokens and of responses of one optimizer step, and the weight of their loss.

    These are of this iteration's responses (source 0); `others` are of the further sources 1, 2, …
    """

    tokens: float
    sequences: float
    weight: float = 1.0
    others: tuple[Normalisers, ...] = ()


def count_normalisers(
    weights: Sequence[float],
    lengths: Sequence[int],
    sources: Sequence[int] | None = None,
    source_weights: Sequence[float | None] = (),
    own_weight: float = 1.0,
) -> Normalisers:
    """Count the responses of one optimizer step by loss weight and number of trained tokens; empty ones don't count.

    sources: of every response, 0 or the number s of its source; source_weights: weight of the loss of source 1, 2, …,
    None: its responses are counted among those of source 0, whose loss has the weight own_weight.
    Without sources all responses are of this iteration. Raises AgentRLError when nothing is left to train on.
    """
    joined = {source for source, weight in enumerate(source_weights, 1) if weight is None}
    of = [0 if source in joined else source for source in (sources or [0] * len(weights))]
    counts = [_count(weights, lengths, of, source) for source in range(1 + len(source_weights))]
    if max(sequences for _, sequences in counts) <= 0:
        raise AgentRLError(f"no response with a positive loss weight among the {len(weights)} of an optimizer step")
    others = [
        Normalisers(*counts[0], own_weight) if weight is None else Normalisers(*count, weight)
        for count, weight in zip(counts[1:], source_weights, strict=True)
    ]
    return Normalisers(*counts[0], own_weight, tuple(others))


def _count(
    weights: Sequence[float], lengths: Sequence[int], sources: Sequence[int], source: int
) -> tuple[float, float]:
    rows = zip(weights, lengths, sources, strict=True)
    pairs = [(weight, length) for weight, length, of in rows if length > 0 and of == source]
    return float(sum(weight * length for weight, length in pairs)), float(sum(weight for weight, _ in pairs))


def token_coefficients(tokens: TrainedTokens, config: ResponseLoss, normalisers: Normalisers) -> Tensor:
    """Coefficient [T] of every token's loss: the aggregated loss is their weighted sum."""
    by_source = (normalisers, *normalisers.others)
    weight = tokens.weight
    if normalisers.others or normalisers.weight != 1.0:
        weight = weight * _of_tokens([item.weight for item in by_source], tokens)
    if config.aggregation == "token_mean":
        return weight / _of_tokens([item.tokens for item in by_source], tokens)
    per_sequence = weight / _of_tokens([item.sequences for item in by_source], tokens)
    if config.aggregation == "sequence_mean_token_sum":
        return per_sequence
    if config.aggregation == "sequence_mean_token_mean":
        return per_sequence / tokens.lengths[tokens.row].to(per_sequence.dtype)
    if config.norm_constant is None:
        raise AgentRLError("loss.aggregation: sequence_mean_token_sum_norm needs loss.norm_constant")
    return per_sequence / config.norm_constant


def _of_tokens(numbers: Sequence[float], tokens: TrainedTokens) -> Tensor | float:
    """The number of every token's source, [T], or the one number there is."""
    return numbers[0] if tokens.source is None else tokens.weight.new_tensor(numbers)[tokens.source]
