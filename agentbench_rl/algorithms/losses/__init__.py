"""Policy losses: loss = K(l) + kl_coefficient * K(KL) - entropy_coefficient * K(H), K the aggregation.

Replayed responses add a policy loss K_s(l) of their own, times its weight; KL and H are of this iteration's responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.aggregation import Normalisers, count_normalisers, token_coefficients
from agentbench_rl.algorithms.losses.cispo import cispo
from agentbench_rl.algorithms.losses.clip_cov import clip_cov
from agentbench_rl.algorithms.losses.dppo import dppo
from agentbench_rl.algorithms.losses.entropy_clip import entropy_clip
from agentbench_rl.algorithms.losses.gates import needs_gate, step_gate
from agentbench_rl.algorithms.losses.gmpo import gmpo
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.algorithms.losses.kl_cov import kl_cov
from agentbench_rl.algorithms.losses.parts import LossParts, TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.policy_gradient import policy_gradient
from agentbench_rl.algorithms.losses.sapo import sapo
from agentbench_rl.algorithms.losses.sequence_clip import sequence_clip
from agentbench_rl.algorithms.losses.sequence_mask import sequence_masked
from agentbench_rl.algorithms.losses.token_clip import token_clip
from agentbench_rl.algorithms.losses.value import value_loss
from agentbench_rl.config.loss import LossConfig
from agentbench_rl.types import AgentRLError

__all__ = [
    "LOSSES",
    "LossParts",
    "Normalisers",
    "TokenLoss",
    "TrainedTokens",
    "count_normalisers",
    "needs_gate",
    "policy_loss",
    "step_gate",
    "value_loss",
]

#: By `loss.kind`; called with the tokens and the loss's own settings.
LOSSES: Mapping[str, Callable[[TrainedTokens, Any], TokenLoss]] = {
    "token_clip": token_clip,
    "entropy_clip": entropy_clip,
    "sequence_clip": sequence_clip,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dppo": dppo,
    "policy_gradient": policy_gradient,
}


def policy_loss(tokens: TrainedTokens, config: LossConfig, normalisers: Normalisers) -> LossParts:
    """Share of one micro-batch in the loss of an optimizer step, and its metrics.

    Raises AgentRLError when a coefficient is set whose input (reference log-probs, entropies) is absent.
    """
    coefficients = token_coefficients(tokens, config, normalisers)
    part = LOSSES[config.kind](tokens, config)
    if config.sequence_mask is not None:
        part = sequence_masked(part, tokens, config.sequence_mask)
    shares = coefficients * part.loss
    loss = shares.sum()
    objective = {"policy": _own(tokens, shares).sum().detach()}
    if normalisers.others:
        objective["replay"] = loss.detach() - objective["policy"]
    own = _own(tokens, coefficients)
    for name, coefficient, term in (
        ("kl", config.kl_coefficient, _kl(tokens, config)),
        ("entropy", -config.entropy_coefficient, _entropy(tokens, config)),
    ):
        if term is not None and coefficient:
            share = coefficient * (own * term).sum()
            objective[name] = share.detach()
            loss = loss + share
    return LossParts(loss, objective, *_metrics(tokens, part, config))


def _own(tokens: TrainedTokens, values: Tensor) -> Tensor:
    """The values [T] of this iteration's responses."""
    return values if tokens.source is None else values[tokens.source == 0]


def _kl(tokens: TrainedTokens, config: LossConfig) -> Tensor | None:
    if tokens.reference_logp is None:
        if config.kl_coefficient:
            raise AgentRLError("loss.kl_coefficient is set, but there are no reference log-probs to compare with")
        return None
    return kl_estimate(_own(tokens, tokens.logp), _own(tokens, tokens.reference_logp), config.kl_estimator)


def _entropy(tokens: TrainedTokens, config: LossConfig) -> Tensor | None:
    if tokens.entropy is None:
        if config.entropy_coefficient:
            raise AgentRLError("loss.entropy_coefficient is set, but the entropies of the tokens were not computed")
        return None
    return _own(tokens, tokens.entropy)


@torch.no_grad()
def _metrics(tokens: TrainedTokens, part: TokenLoss, config: LossConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weighted sums over tokens (clips, ratio, old - new log-prob, KL, entropy) and the largest ratio."""
    weight, ratio = _own(tokens, tokens.weight), _own(tokens, part.ratio)
    terms = {"ratio": ratio, "approx_kl": _own(tokens, tokens.old_logp - tokens.logp)}
    terms |= {name: _own(tokens, hit) for name, hit in part.hits.items()}
    reference_kl, entropy = _kl(tokens, config), _entropy(tokens, config)
    if reference_kl is not None:
        terms["reference_kl"] = reference_kl
    if entropy is not None:
        terms["entropy"] = entropy
    sums = {"tokens": weight.sum()} | {name: (weight * term).sum() for name, term in terms.items()}
    trained = ratio[weight > 0]
    return sums, {"ratio": trained.max() if trained.numel() else torch.zeros_like(sums["ratio"])}
