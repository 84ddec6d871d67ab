"""Entropy-balanced clip: the token clip, but on tokens with z(H) > 0 the upper bound is (1 + high) rho / sg(rho).

The bound's value is that of the token clip, its gradient (1 + high) that of logp: where A > 0 and rho is above it, the
token keeps the gradient -A (1 + high). Source: AEPO (arXiv 2510.14545).
"""

from __future__ import annotations

import torch

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.algorithms.losses.token_clip import clipped, dual_clipped
from agentbench_rl.config.loss import EntropyClip
from agentbench_rl.types import AgentRLError


def entropy_clip(tokens: TrainedTokens, settings: EntropyClip) -> TokenLoss:
    """Loss of every token [T], its ratio, and where the upper bound took the gradient or kept it.

    Raises AgentRLError without entropy scores.
    """
    if tokens.entropy_scores is None:
        raise AgentRLError("loss.kind: entropy_clip needs entropy_scores in the advantages; run the advantage stage")
    advantage, ratio = tokens.advantage, token_ratio(tokens)
    part = clipped(advantage, ratio, settings.clip_low, settings.clip_high)
    above, uncertain = part.hits["clip_high"], tokens.entropy_scores > 0
    kept = -advantage * (1.0 + settings.clip_high) * (ratio / ratio.detach())
    hits = part.hits | {"clip_high": above & ~uncertain, "clip_kept": above & uncertain}
    loss = torch.where(hits["clip_kept"], kept, part.loss)
    return dual_clipped(TokenLoss(loss, ratio, hits), advantage, settings)
