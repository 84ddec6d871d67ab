"""GMPO: every token of a response has the loss -A r, r = exp(mean_t x_t), x_t its pessimistically clipped log-ratio.

d_t = logp - old; x_t = min(d_t, clip(d_t, -low, high)) where A > 0, the max where A < 0. A is the mean of the token
advantages of the response: the method knows one per response. Use it with aggregation sequence_mean_token_mean.
Source: GMPO (arXiv 2507.20673).
"""

from __future__ import annotations

import torch

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import response_mean, token_log_ratio
from agentbench_rl.config.loss import Gmpo


def gmpo(tokens: TrainedTokens, settings: Gmpo) -> TokenLoss:
    """Loss of every token [T], the ratio of its response, and where each clip took the token's gradient away."""
    advantage = response_mean(tokens.advantage, tokens)[tokens.row]
    log_ratio = token_log_ratio(tokens)
    bounded = log_ratio.clamp(-settings.clip_low, settings.clip_high)
    used = torch.where(advantage > 0, torch.minimum(log_ratio, bounded), torch.maximum(log_ratio, bounded))
    ratio = response_mean(used, tokens).exp()[tokens.row]
    hits = {
        "clip_low": (advantage < 0) & (log_ratio < -settings.clip_low),
        "clip_high": (advantage > 0) & (log_ratio > settings.clip_high),
    }
    return TokenLoss(-advantage * ratio, ratio, hits)
