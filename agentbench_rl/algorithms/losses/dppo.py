"""DPPO: l = -A sg(min(rho, c)) logp, 0 for tokens whose probability already moved too far in the direction of A.

p, q: probabilities of the token now and before the update. Too far: D > threshold and p > q where A > 0, p < q where
A < 0; D = |p - q| (tv) or q log(q / p) + (1 - q) log((1 - q) / (1 - p)) (kl). A token that moved against its advantage
is never masked. Source: DPPO (arXiv 2602.04879, binary divergences; truncation of section 5.4 as in verl).
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.config.loss import Dppo

GUARD = 1e-8  # of 1 - p, for tokens of probability 1


def dppo(tokens: TrainedTokens, settings: Dppo) -> TokenLoss:
    """Loss of every token [T], its ratio, and where the mask took the gradient away or the ratio was truncated."""
    advantage, logp, old = tokens.advantage, tokens.logp.detach(), tokens.old_logp
    ratio = token_ratio(tokens).detach()
    far = _divergence(logp, old, settings) > settings.threshold
    hits = {
        "mask_low": far & (advantage < 0) & (logp < old),
        "mask_high": far & (advantage > 0) & (logp > old),
        "truncated": ratio > settings.truncation,
    }
    loss = -advantage * ratio.clamp(max=settings.truncation) * tokens.logp
    masked = hits["mask_low"] | hits["mask_high"]
    return TokenLoss(torch.where(masked, torch.zeros_like(loss), loss), ratio, hits)


def _divergence(logp: Tensor, old: Tensor, settings: Dppo) -> Tensor:
    if settings.divergence == "tv":
        return (logp.exp() - old.exp()).abs()
    rest, old_rest = -torch.expm1(logp), -torch.expm1(old)
    return old.exp() * (old - logp) + old_rest * torch.log((old_rest + GUARD) / (rest + GUARD))
