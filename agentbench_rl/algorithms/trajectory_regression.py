"""A learned dense reward: r_t = tanh(head output of turn t); loss = mean over episodes of (sum_t r_t - R)^2.

Source: RSPO (arXiv 2607.04713, equation 5), after SPA-RL. R in [0, 1] is an episode's outcome.
"""

from __future__ import annotations

import torch
from torch import Tensor


def turn_scores(outputs: Tensor) -> Tensor:
    """Dense rewards [Q] in (-1, 1) from the head's outputs [Q] of Q turns; large ones do not round to 1."""
    limit = 1.0 - torch.finfo(outputs.dtype).eps
    return torch.tanh(outputs).clamp(-limit, limit)


def episode_sums(scores: Tensor, episode: Tensor, episodes: int) -> Tensor:
    """Sum of the scores [Q] of every episode [E]; episode [Q] int64: which one a turn belongs to."""
    return scores.new_zeros(episodes).index_add(0, episode, scores)


def regression_loss(scores: Tensor, episode: Tensor, outcomes: Tensor) -> Tensor:
    """Mean squared error (scalar) of the episodes' summed scores [Q] against their outcomes [E]."""
    return (episode_sums(scores, episode, len(outcomes)) - outcomes).square().mean()
