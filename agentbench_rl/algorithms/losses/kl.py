"""KL estimators of the sampled token, d = logp - reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1.

k3 is clamped to [-10, 10]. Source: J. Schulman, "Approximating KL divergence" (2020); clamp as in verl.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def kl_estimate(logp: Tensor, reference_logp: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Estimate of KL(policy || reference) for every token [T], in nats."""
    difference = logp - reference_logp
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    difference = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (torch.exp(-difference) + difference - 1).clamp(-K3_LIMIT, K3_LIMIT)
