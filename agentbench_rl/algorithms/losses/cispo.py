"""CISPO: l = -sg(clip(rho, 1 - low, 1 + high)) A logp; the gradient is bounded and never taken away.

Source: MiniMax-M1 (arXiv 2506.13585, equations 4 and 5).
"""

from __future__ import annotations

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.config.loss import Cispo


def cispo(tokens: TrainedTokens, settings: Cispo) -> TokenLoss:
    """Loss of every token [T], its ratio, and whose weight was clipped."""
    ratio = token_ratio(tokens).detach()
    low, high = 1.0 - settings.clip_low, 1.0 + settings.clip_high
    loss = -ratio.clamp(low, high) * tokens.advantage * tokens.logp
    return TokenLoss(loss, ratio, {"clip_low": ratio < low, "clip_high": ratio > high})
