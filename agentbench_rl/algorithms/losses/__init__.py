"""Policy losses: loss = K(l) + kl_coefficient * K(KL) - entropy_coefficient * K(H), K the aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.aggregation import Normalisers, count_normalisers, token_coefficients
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.algorithms.losses.parts import LossParts, TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.token_clip import token_clip
from agentbench_rl.config.loss import LossConfig
from agentbench_rl.types import AgentRLError

__all__ = ["LOSSES", "LossParts", "Normalisers", "TokenLoss", "TrainedTokens", "count_normalisers", "policy_loss"]

#: By `loss.kind`; called with the tokens and the loss's own settings.
LOSSES: Mapping[str, Callable[[TrainedTokens, Any], TokenLoss]] = {"token_clip": token_clip}


def policy_loss(tokens: TrainedTokens, config: LossConfig, normalisers: Normalisers) -> LossParts:
    """Share of one micro-batch in the loss of an optimizer step, and its metrics.

    Raises AgentRLError when a coefficient is set whose input (reference log-probs, entropies) is absent.
    """
    coefficients = token_coefficients(tokens, config, normalisers)
    part = LOSSES[config.kind](tokens, config)
    loss = (coefficients * part.loss).sum()
    objective = {"policy": loss.detach()}
    for name, coefficient, term in (
        ("kl", config.kl_coefficient, _kl(tokens, config)),
        ("entropy", -config.entropy_coefficient, _entropy(tokens, config)),
    ):
        if term is not None and coefficient:
            share = coefficient * (coefficients * term).sum()
            objective[name] = share.detach()
            loss = loss + share
    return LossParts(loss, objective, *_metrics(tokens, part, config))


def _kl(tokens: TrainedTokens, config: LossConfig) -> Tensor | None:
    if tokens.reference_logp is None:
        if config.kl_coefficient:
            raise AgentRLError("loss.kl_coefficient is set, but there are no reference log-probs to compare with")
        return None
    return kl_estimate(tokens.logp, tokens.reference_logp, config.kl_estimator)


def _entropy(tokens: TrainedTokens, config: LossConfig) -> Tensor | None:
    if tokens.entropy is None and config.entropy_coefficient:
        raise AgentRLError("loss.entropy_coefficient is set, but the entropies of the tokens were not computed")
    return tokens.entropy


@torch.no_grad()
def _metrics(tokens: TrainedTokens, part: TokenLoss, config: LossConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weighted sums over tokens (clips, ratio, old - new log-prob, KL, entropy) and the largest ratio."""
    weight = tokens.weight
    sums = {"tokens": weight.sum(), "ratio": (weight * part.ratio).sum()}
    sums["approx_kl"] = (weight * (tokens.old_logp - tokens.logp)).sum()
    sums |= {name: (weight * hit).sum() for name, hit in part.hits.items()}
    reference_kl = _kl(tokens, config)
    if reference_kl is not None:
        sums["reference_kl"] = (weight * reference_kl).sum()
    if tokens.entropy is not None:
        sums["entropy"] = (weight * tokens.entropy).sum()
    trained = part.ratio[weight > 0]
    return sums, {"ratio": trained.max() if trained.numel() else torch.zeros_like(sums["ratio"])}
