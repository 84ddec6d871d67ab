"""Random tokens of a micro-batch, and parts of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses import LossParts, Normalisers, TrainedTokens, policy_loss
from agentbench_rl.config.loss import LossConfig

AGGREGATIONS = [
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "sequence_mean_token_sum_norm",
]


def batch(
    lengths: Sequence[int], seed: int = 0, weights: Sequence[float] | None = None, drift: float = 0.4
) -> TrainedTokens:
    """Responses of the given lengths with log-probs below 0, one advantage each; every third token is gated."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    logp, moved, reference, entropy, scores = torch.randn(5, total, generator=generator, dtype=torch.float64)
    logp = -logp.abs() - 0.01
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    advantage = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    weight = torch.ones(len(lengths), dtype=torch.float64) if weights is None else torch.tensor(weights).double()
    return TrainedTokens(
        logp=logp.clone().requires_grad_(),
        old_logp=(logp + drift * moved).clamp(max=-1e-3),
        reference_logp=-reference.abs(),
        entropy=entropy.square(),
        advantage=advantage[row],
        weight=weight[row],
        row=row,
        lengths=torch.tensor(lengths),
        entropy_scores=scores,
        gate=torch.arange(total) % 3 == 0,
    )


def rows_of(tokens: TrainedTokens, rows: Sequence[int]) -> TrainedTokens:
    """The micro-batch of the given responses, in the given order, numbered from 0."""
    places = [torch.nonzero(tokens.row == row).flatten() for row in rows]
    chosen = torch.cat([torch.zeros(0, dtype=torch.int64), *places])
    row = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(place) for place in places]))
    return select(tokens, chosen, row, tokens.lengths[list(rows)])


def select(tokens: TrainedTokens, chosen: Tensor, row: Tensor, lengths: Tensor) -> TrainedTokens:
    """The chosen tokens, with other response numbers and lengths."""
    flat = {field.name: getattr(tokens, field.name) for field in dataclasses.fields(tokens)}
    picked = {name: value if value is None else value[chosen] for name, value in flat.items() if name != "lengths"}
    return TrainedTokens(**picked | {"row": row, "lengths": lengths})


def step(
    tokens: TrainedTokens, parts: Sequence[TrainedTokens], config: LossConfig, normalisers: Normalisers
) -> tuple[float, Tensor, list[LossParts]]:
    """Loss and gradient of one optimizer step over `parts`, which share the log-probs of `tokens`."""
    tokens.logp.grad = None
    results: list[LossParts] = []
    for part in parts:
        results.append(policy_loss(part, config, normalisers))
        results[-1].loss.backward(retain_graph=True)  # parts share the selection of their log-probs
    return sum(result.loss.item() for result in results), tokens.logp.grad.clone(), results
