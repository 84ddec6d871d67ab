"""KL-Cov: l = -A rho, plus coefficient |logp - old| for the tokens of the step's gate; no clip.

Source: "The Entropy Mechanism of Reinforcement Learning" (arXiv 2505.22617); the gate: `gates.py`.
"""

from __future__ import annotations

import torch

from agentbench_rl.algorithms.losses.gates import gate_of
from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.config.loss import KlCov


def kl_cov(tokens: TrainedTokens, settings: KlCov) -> TokenLoss:
    """Loss of every token [T], its ratio, and the tokens that pay for moving."""
    gate, ratio = gate_of(tokens, settings), token_ratio(tokens)
    loss = -tokens.advantage * ratio
    penalty = settings.coefficient * (tokens.logp - tokens.old_logp).abs()
    return TokenLoss(torch.where(gate, loss + penalty, loss), ratio, {"gate": gate})
