"""Policy losses: loss = K(l) + kl_coefficient * K(KL) - entropy_coefficient * K(H), K the aggregation.

Replayed responses add a policy loss K_s(l) of their own, times its weight; KL and H are of this iteration's responses,
but with a moved centre of the replayed ones too (RSPO, arXiv 2607.04713, equation 3).
The loss of events (set_clip) stands beside them: K weighs the tokens by their event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.aggregation import (
    Normalisers,
    count_normalisers,
    token_coefficients,
)
from agentbench_rl.algorithms.losses.cispo import cispo
from agentbench_rl.algorithms.losses.clip_cov import clip_cov
from agentbench_rl.algorithms.losses.dppo import dppo
from agentbench_rl.algorithms.losses.entropy_clip import entropy_clip
from agentbench_rl.algorithms.losses.gates import needs_gate, step_gate
from agentbench_rl.algorithms.losses.gmpo import gmpo
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.algorithms.losses.kl_cov import kl_cov
from agentbench_rl.algorithms.losses.moved_centre import moved_centre
from agentbench_rl.algorithms.losses.parts import LossParts, TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.policy_gradient import policy_gradient
from agentbench_rl.algorithms.losses.sapo import sapo
from agentbench_rl.algorithms.losses.sequence_clip import sequence_clip
from agentbench_rl.algorithms.losses.sequence_mask import sequence_masked
from agentbench_rl.algorithms.losses.set_clip import EventTokens
from agentbench_rl.algorithms.losses.token_clip import token_clip
from agentbench_rl.algorithms.losses.value import value_loss
from agentbench_rl.config.loss import LossConfig, MovedCentre, ResponseLoss, SetClip
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
    "set_loss",
    "step_gate",
    "value_loss",
]

#: Losses of responses by `loss.kind`; called with the tokens and the loss's own settings.
LOSSES: Mapping[str, Callable[[TrainedTokens, Any], TokenLoss]] = {
    "token_clip": token_clip,
    "moved_centre": moved_centre,
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


def policy_loss(tokens: TrainedTokens, config: ResponseLoss, normalisers: Normalisers) -> LossParts:
    """Share of one micro-batch in the loss of an optimizer step, and its metrics.

    Raises AgentRLError when a coefficient is set whose input (reference log-probs, entropies) is absent.
    """
    coefficients = token_coefficients(tokens, config, normalisers)
    part = LOSSES[config.kind](tokens, config)
    if config.sequence_mask is not None:
        part = sequence_masked(part, tokens, config.sequence_mask)
    own = None if tokens.source is None else tokens.source == 0
    shares = coefficients * part.loss
    loss = shares.sum()
    objective = {"policy": _picked(shares, own).sum().detach()}
    if normalisers.others:
        objective["replay"] = loss.detach() - objective["policy"]
    regularised = None if isinstance(config, MovedCentre) else own
    loss = _regularised(loss, objective, tokens, _picked(coefficients, regularised), config, regularised)
    return LossParts(loss, objective, *_metrics(tokens, part, config, own))


def set_loss(tokens: TrainedTokens, config: SetClip, events: EventTokens) -> LossParts:
    """Share of one micro-batch in the loss of an optimizer step of events, and its metrics.

    Its gradient is that of -sum c f logp; its value is the tokens' part of -J, which the first pass found.
    Raises AgentRLError like `policy_loss`.
    """
    moved = events.coefficient * (tokens.logp - tokens.logp.detach())
    loss = -(events.objective + moved).sum()
    objective = {"policy": loss.detach()}
    loss = _regularised(loss, objective, tokens, events.regulariser, config, None)
    return LossParts(loss, objective, _sums(tokens, {}, config, None), {})


def _regularised(
    loss: Tensor,
    objective: dict[str, Tensor],
    tokens: TrainedTokens,
    weight: Tensor,
    config: LossConfig,
    rows: Tensor | None,
) -> Tensor:
    """The loss with KL and entropy of the tokens of a mask, by their weights; the terms join the objective."""
    for name, coefficient, term in (
        ("kl", config.kl_coefficient, _kl(tokens, config, rows)),
        ("entropy", -config.entropy_coefficient, _entropy(tokens, config, rows)),
    ):
        if term is not None and coefficient:
            share = coefficient * (weight * term).sum()
            objective[name] = share.detach()
            loss = loss + share
    return loss


def _picked(values: Tensor, rows: Tensor | None) -> Tensor:
    """The values [T] of the tokens of a mask [T]; None: of all tokens."""
    return values if rows is None else values[rows]


def _kl(tokens: TrainedTokens, config: LossConfig, rows: Tensor | None) -> Tensor | None:
    if tokens.reference_logp is None:
        if config.kl_coefficient:
            raise AgentRLError("loss.kl_coefficient is set, but there are no reference log-probs to compare with")
        return None
    return kl_estimate(_picked(tokens.logp, rows), _picked(tokens.reference_logp, rows), config.kl_estimator)


def _entropy(tokens: TrainedTokens, config: LossConfig, rows: Tensor | None) -> Tensor | None:
    if tokens.entropy is None:
        if config.entropy_coefficient:
            raise AgentRLError("loss.entropy_coefficient is set, but the entropies of the tokens were not computed")
        return None
    return _picked(tokens.entropy, rows)


@torch.no_grad()
def _metrics(
    tokens: TrainedTokens, part: TokenLoss, config: ResponseLoss, own: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weighted sums over own tokens (clips, ratio, old - new log-prob, KL, entropy) and the largest ratio."""
    weight, ratio = _picked(tokens.weight, own), _picked(part.ratio, own)
    terms = {"ratio": ratio} | {name: _picked(hit, own) for name, hit in part.hits.items()}
    sums = _sums(tokens, terms, config, own)
    maxima = {"ratio": _largest(ratio[weight > 0], sums["ratio"])}
    if part.centre is not None and own is not None:
        replayed, largest = _replayed_metrics(tokens, part, part.centre, config, ~own)
        return sums | replayed, maxima | largest
    return sums, maxima


@torch.no_grad()
def _sums(tokens: TrainedTokens, terms: dict[str, Tensor], config: LossConfig, own: Tensor | None) -> dict[str, Tensor]:
    """Weighted sums over own tokens: the terms, old - new log-prob, KL, entropy."""
    weight = _picked(tokens.weight, own)
    terms = terms | {"approx_kl": _picked(tokens.old_logp - tokens.logp, own)}
    reference_kl, entropy = _kl(tokens, config, own), _entropy(tokens, config, own)
    if reference_kl is not None:
        terms["reference_kl"] = reference_kl
    if entropy is not None:
        terms["entropy"] = entropy
    return {"tokens": weight.sum()} | {name: (weight * term).sum() for name, term in terms.items()}


def _replayed_metrics(
    tokens: TrainedTokens, part: TokenLoss, centre: Tensor, config: ResponseLoss, rows: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of replayed tokens: weighted sums of ratio and clips; of the centre, |its log|, whether it has no lower bound."""
    assert isinstance(config, MovedCentre)
    weight = tokens.weight[rows]
    terms = {"ratio_mean": part.ratio, "centre_mean": centre, "centre_distance": centre.log().abs()}
    terms |= {"centre_low": centre <= config.clip_low} | part.hits
    sums = {f"replayed_{name}": (weight * term[rows]).sum() for name, term in terms.items()}
    trained = rows & (tokens.weight > 0)
    maxima = {"ratio": part.ratio, "centre": centre}
    largest = {f"replayed_{name}": _largest(values[trained], weight.sum()) for name, values in maxima.items()}
    return {"replayed_tokens": weight.sum()} | sums, largest


def _largest(values: Tensor, like: Tensor) -> Tensor:
    """Largest of the values [T]; 0 where there is none."""
    return values.max() if values.numel() else torch.zeros_like(like)
