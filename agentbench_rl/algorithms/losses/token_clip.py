"""Token clip: l = max(-A rho, -A clip(rho, 1 - low, 1 + high)), rho = exp(clamp(logp - old, -20, 20)).

Dual clip: where A < 0, l = min(l, -A c). Source: PPO (arXiv 1707.06347, equation 7); dual clip: arXiv 1912.09729,
equation 5; asymmetric bounds: DAPO (arXiv 2503.14476, equation 10).
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.config.loss import EntropyClip, TokenClip


def token_clip(tokens: TrainedTokens, settings: TokenClip) -> TokenLoss:
    """Loss of every token [T] to be minimised, its ratio, and where each clip took the gradient away."""
    ratio = token_ratio(tokens)
    part = clipped(tokens.advantage, ratio, settings.clip_low, settings.clip_high)
    return dual_clipped(part, tokens.advantage, settings)


def clipped(advantage: Tensor, ratio: Tensor, low: float, high: float) -> TokenLoss:
    """Pessimistic clip of any ratio [T] to [1 - low, 1 + high]."""
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1.0 - low, 1.0 + high))
    hits = {
        "clip_low": (advantage < 0) & (ratio < 1.0 - low),
        "clip_high": (advantage > 0) & (ratio > 1.0 + high),
    }
    return TokenLoss(loss, ratio, hits)


def dual_clipped(part: TokenLoss, advantage: Tensor, settings: TokenClip | EntropyClip) -> TokenLoss:
    """Bound the loss of tokens with a negative advantage from above."""
    if settings.dual_clip is None:
        return part
    hit = (advantage < 0) & (part.ratio > settings.dual_clip)
    loss = torch.where(hit, -advantage * settings.dual_clip, part.loss)
    return TokenLoss(loss, part.ratio, part.hits | {"clip_dual": hit})
