"""Sequence ratio: l = max(-A r, -A clip(r, 1 - low, 1 + high)), r = sg(s) exp(c (logp - sg(logp))), no dual clip.

s = exp(mean_t(logp - old)), c = 1 (GSPO), or s = exp(sum_t(logp - old)), c = T, pooled over a response of T tokens;
log r is clamped at 10. With one advantage per response, the gradient of the mean over its tokens is that of the same
loss of s itself; with one per token it is GSPO-token. Source: GSPO (arXiv 2507.18071, equations 5-7 and 13-14; form
and clamp as in verl); a response is a turn: turn-PPO (arXiv 2512.17008).
"""

from __future__ import annotations

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import response_mean, response_sum
from agentbench_rl.algorithms.losses.token_clip import clipped
from agentbench_rl.config.loss import SequenceClip

LOG_LIMIT = 10.0


def sequence_clip(tokens: TrainedTokens, settings: SequenceClip) -> TokenLoss:
    """Loss of every token [T], the ratio of its response, and where each clip took the gradient away."""
    pool = response_mean if settings.pooling == "mean" else response_sum
    logp = tokens.logp.detach()
    pooled = pool(logp - tokens.old_logp, tokens)[tokens.row]
    own = tokens.logp - logp
    if settings.pooling == "sum":
        own = own * tokens.lengths[tokens.row].to(own.dtype)
    ratio = (pooled + own).clamp(max=LOG_LIMIT).exp()
    return clipped(tokens.advantage, ratio, settings.clip_low, settings.clip_high)
