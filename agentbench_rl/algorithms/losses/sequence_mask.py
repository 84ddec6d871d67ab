"""Sequence mask: a response with mean A < 0 and mean(old - logp) > limit contributes no policy loss.

The normalisers still count it. Source: ARLArena (limit 0.223 = ln 1.25).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import response_mean


def sequence_masked(part: TokenLoss, tokens: TrainedTokens, limit: float) -> TokenLoss:
    """The loss without the masked responses, and their tokens among the hits."""
    drift = response_mean(tokens.old_logp - tokens.logp.detach(), tokens)
    masked = ((response_mean(tokens.advantage, tokens) < 0) & (drift > limit))[tokens.row]
    loss = torch.where(masked, torch.zeros_like(part.loss), part.loss)
    return replace(part, loss=loss, hits=part.hits | {"sequence_mask": masked})
