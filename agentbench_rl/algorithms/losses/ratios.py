"""Importance ratios of tokens, rho = exp(clamp(logp - old, -20, 20)), and sums over responses; clamp as in verl."""

from __future__ import annotations

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.parts import TrainedTokens

LOG_RATIO_LIMIT = 20.0


def token_log_ratio(tokens: TrainedTokens) -> Tensor:
    """Clamped log-ratio [T]."""
    return (tokens.logp - tokens.old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def token_ratio(tokens: TrainedTokens) -> Tensor:
    """Ratio [T], finite whatever the log-probs."""
    return torch.exp(token_log_ratio(tokens))


def response_sum(values: Tensor, tokens: TrainedTokens) -> Tensor:
    """Sum over the tokens [T] of every response, [R]."""
    return values.new_zeros(len(tokens.lengths)).index_add(0, tokens.row, values)


def response_mean(values: Tensor, tokens: TrainedTokens) -> Tensor:
    """Mean over the tokens [T] of every response, [R]; 0 for a response without tokens."""
    return response_sum(values, tokens) / tokens.lengths.clamp(min=1).to(values.dtype)
