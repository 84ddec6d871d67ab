"""Set clip: one ratio, one advantage and one clip for the K responses (members) that one transition consumes together.

l_j = f_j sum_t (logp - old), f_j = 1, 1 / T_j or T_j^(-1/2) (len_norm none, mean, sqrt; T_j tokens);
L = sum_j l_j / n, n = sqrt(K), 1 or K (set_norm sqrt, none, mean); rho = exp(clamp(L, -20, 20));
s = min(rho A, clip(rho, 1 - low, 1 + high) A); J = sum_e a_e s_e, a_e = w_e u_e / sum_e w_e u_e, w: loss weight,
u = 1, K or sum_j T_j (reduction event, member, token); loss = -J.
The gradient needs one number per event, so members may be in different micro-batches, processes and models:
dJ = sum_e c_e sum_j f_j sum_t dlogp, c_e = (a_e / n_e) A_e rho_e where s_e is not clipped and |L_e| <= 20, else 0.
KL and entropy of a token weigh f_j a_e / n_e, what its log-prob weighs in L.
Source: SRPO (arXiv 2609.08452, equations 3, 4, 6 and 7). The paper divides by sqrt(K) and averages over events; it
names the reduction by token without a formula, and has neither a len_norm nor a KL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.algorithms.losses.ratios import LOG_RATIO_LIMIT
from agentbench_rl.config.loss import SetClip

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Events:
    """N events of one optimizer step, arrays [N].

    log_ratio: sum of the members' l; size: number of members K; tokens: of all members; advantage; weight: loss weight.
    """

    log_ratio: Floats
    size: Floats
    tokens: Floats
    advantage: Floats
    weight: Floats


@dataclass(frozen=True)
class EventLoss:
    """Of N events, arrays [N]: L, rho, whether the clip acts, s, a, a / n (for KL and entropy), and c."""

    log_ratio: Floats
    ratio: Floats
    clipped: Bools
    surrogate: Floats
    share: Floats
    regulariser: Floats
    coefficient: Floats


@dataclass(frozen=True)
class EventTokens:
    """Of the T tokens of a micro-batch, [T]: c f, f a / n, and an equal part of their event's a s."""

    coefficient: Tensor
    regulariser: Tensor
    objective: Tensor


def length_factor(lengths: Floats, settings: SetClip) -> Floats:
    """What the log-ratio of a member of so many tokens (> 0) is multiplied by, f."""
    if settings.len_norm == "none":
        return np.ones_like(lengths)
    return 1.0 / (lengths if settings.len_norm == "mean" else np.sqrt(lengths))


def event_loss(events: Events, settings: SetClip) -> EventLoss:
    """Ratio, clipped surrogate and coefficient of every event; the shares of all N events add up to 1."""
    size, advantage = events.size, events.advantage
    norm = {"sqrt": np.sqrt(size), "none": np.ones_like(size), "mean": size}[settings.set_norm]
    log_ratio = events.log_ratio / norm
    ratio = np.exp(np.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    low, high = 1.0 - settings.clip_low, 1.0 + settings.clip_high
    clipped = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, low, high) * advantage)
    units = {"event": np.ones_like(size), "member": size, "token": events.tokens}[settings.reduction]
    share = events.weight * units / (events.weight * units).sum()
    moves = ~clipped & (np.abs(log_ratio) <= LOG_RATIO_LIMIT)
    coefficient = np.where(moves, share / norm * advantage * ratio, 0.0)
    return EventLoss(log_ratio, ratio, clipped, surrogate, share, share / norm, coefficient)


def event_metrics(events: Events, loss: EventLoss) -> dict[str, float]:
    """Means over the events of one optimizer step, and the largest |L| and ratio; clip shares also by size."""
    metrics = {
        "events": float(len(events.size)),
        "set_size": float(events.size.mean()),
        "log_ratio_abs_mean": float(np.abs(loss.log_ratio).mean()),
        "log_ratio_abs_max": float(np.abs(loss.log_ratio).max()),
        "ratio_mean": float(loss.ratio.mean()),
        "ratio_max": float(loss.ratio.max()),
        "clip_share": float(loss.clipped.mean()),
    }
    sizes = np.unique(events.size)
    return metrics | {f"clip_share_k{size:.0f}": float(loss.clipped[events.size == size].mean()) for size in sizes}
