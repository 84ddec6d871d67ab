"""Moved centre: r = pi / pi_B, c = pi_old / pi_B, l = max(-A r, -A clip(r, c - low, c + high)), pi_B: who sampled.

Where the old policy sampled, c = 1: this is the token clip. Dividing by c, pi / pi_old may move within 1 -+ width / c:
less than PPO allows where pi_B likes a token less than pi_old does, more where it likes it more; for c <= low a token
of negative advantage is never clipped. Source: RSPO (arXiv 2607.04713, equation 3); the clip is GePPO's
(arXiv 2111.00072). Log-ratios are clamped to [-20, 20].
"""

from __future__ import annotations

import torch

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import LOG_RATIO_LIMIT
from agentbench_rl.config.loss import MovedCentre


def moved_centre(tokens: TrainedTokens, settings: MovedCentre) -> TokenLoss:
    """Loss of every token [T] to be minimised, its ratio to the policy that sampled it, its clips and its centre."""
    advantage = tokens.advantage
    behaviour = tokens.old_logp if tokens.behaviour_logp is None else tokens.behaviour_logp
    ratio = torch.exp((tokens.logp - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    centre = torch.exp((tokens.old_logp - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    # In this order the bounds of c = 1 are exactly those of the token clip.
    low, high = (centre - 1.0) + (1.0 - settings.clip_low), (centre - 1.0) + (1.0 + settings.clip_high)
    loss = torch.maximum(-advantage * ratio, -advantage * torch.clamp(ratio, low, high))
    hits = {"clip_low": (advantage < 0) & (ratio < low), "clip_high": (advantage > 0) & (ratio > high)}
    replayed = torch.zeros_like(advantage, dtype=torch.bool) if tokens.source is None else tokens.source > 0
    for bound, rows in ((settings.dual_clip, ~replayed), (settings.dual_clip_replayed, replayed)):
        if bound is not None:
            hit = rows & (advantage < 0) & (torch.maximum(ratio, low) > bound)
            loss = torch.where(hit, -advantage * bound, loss)
            hits["clip_dual"] = hits["clip_dual"] | hit if "clip_dual" in hits else hit
    return TokenLoss(loss, ratio, hits, centre)
