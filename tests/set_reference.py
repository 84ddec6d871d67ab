"""A second, plain implementation of the set clip: the objective in one forward pass, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentbench_rl.config.loss import SetClip


@dataclass
class PlainEvent:
    """Log-probs, old and reference log-probs and entropies of every member's tokens; advantage; loss weight."""

    logp: list[Tensor]
    old: list[Tensor]
    reference: list[Tensor]
    entropy: list[Tensor]
    advantage: float
    weight: float = 1.0


def plain_set_loss(events: Sequence[PlainEvent], settings: SetClip) -> Tensor:
    """-J + kl_coefficient KL (k3) - entropy_coefficient H of all events of a step."""
    units = [event.weight * _unit(event, settings) for event in events]
    terms = [unit / sum(units) * _event(event, settings) for unit, event in zip(units, events, strict=True)]
    return torch.stack(terms).sum()


def _unit(event: PlainEvent, settings: SetClip) -> float:
    if settings.reduction == "token":
        return float(sum(len(member) for member in event.logp))
    return float(len(event.logp)) if settings.reduction == "member" else 1.0


def _event(event: PlainEvent, settings: SetClip) -> Tensor:
    size = len(event.logp)
    norm = {"sqrt": size**0.5, "none": 1.0, "mean": float(size)}[settings.set_norm]
    log_ratio, kl, entropy = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for logp, old, reference, chaos in zip(event.logp, event.old, event.reference, event.entropy, strict=True):
        length = max(len(logp), 1)
        factor = {"none": 1.0, "mean": 1 / length, "sqrt": length**-0.5}[settings.len_norm] / norm
        log_ratio = log_ratio + factor * (logp - old).sum()
        kl = kl + factor * (torch.exp(reference - logp) - (reference - logp) - 1).sum()
        entropy = entropy + factor * chaos.sum()
    ratio = torch.exp(torch.clamp(log_ratio, -20.0, 20.0))
    clipped = torch.clamp(ratio, 1 - settings.clip_low, 1 + settings.clip_high)
    surrogate = torch.minimum(ratio * event.advantage, clipped * event.advantage)
    return -surrogate + settings.kl_coefficient * kl - settings.entropy_coefficient * entropy
