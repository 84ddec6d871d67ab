"""SAPO: l = -A sigmoid(tau (rho - 1)) 4 / tau, tau by the sign of A; slope 1 in rho at rho = 1.

Source: SAPO (arXiv 2511.20347).
"""

from __future__ import annotations

import torch

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.config.loss import Sapo


def sapo(tokens: TrainedTokens, settings: Sapo) -> TokenLoss:
    """Loss of every token [T] and its ratio; nothing is clipped."""
    advantage, ratio = tokens.advantage, token_ratio(tokens)
    positive = torch.full_like(advantage, settings.tau_positive)
    tau = torch.where(advantage > 0, positive, settings.tau_negative)
    loss = -advantage * torch.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau
    return TokenLoss(loss, ratio, {})
