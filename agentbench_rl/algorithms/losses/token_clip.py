"""Token clip: l = max(-A rho, -A clip(rho, 1 - low, 1 + high)), rho = exp(clamp(logp - old, -20, 20)).

Dual clip: where A < 0, l = min(l, -A c). Source: PPO (arXiv 1707.06347, equation 7); dual clip: arXiv 1912.09729,
equation 5; asymmetric bounds: DAPO (arXiv 2503.14476, equation 10).
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.config.loss import TokenClip

LOG_RATIO_LIMIT = 20.0


def token_clip(tokens: TrainedTokens, settings: TokenClip) -> TokenLoss:
    """Loss of every token [T] to be minimised, its ratio, and where each clip took the gradient away."""
    advantage = tokens.advantage
    ratio = torch.exp((tokens.logp - tokens.old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    hits: dict[str, Tensor] = {
        "clip_low": (advantage < 0) & (ratio < 1.0 - settings.clip_low),
        "clip_high": (advantage > 0) & (ratio > 1.0 + settings.clip_high),
    }
    if settings.dual_clip is not None:
        hits["clip_dual"] = (advantage < 0) & (ratio > settings.dual_clip)
        loss = torch.where(hits["clip_dual"], -advantage * settings.dual_clip, loss)
    return TokenLoss(loss, ratio, hits)
