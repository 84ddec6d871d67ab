"""Clip-Cov: l = 0 for the tokens of the step's gate, the token clip without dual clip for the others.

Source: "The Entropy Mechanism of Reinforcement Learning" (arXiv 2505.22617); the gate: `gates.py`.
"""

from __future__ import annotations

import torch

from agentbench_rl.algorithms.losses.gates import gate_of
from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.algorithms.losses.token_clip import clipped
from agentbench_rl.config.loss import ClipCov


def clip_cov(tokens: TrainedTokens, settings: ClipCov) -> TokenLoss:
    """Loss of every token [T], its ratio, and where a clip or the gate took the gradient away."""
    gate = gate_of(tokens, settings)
    part = clipped(tokens.advantage, token_ratio(tokens), settings.clip_low, settings.clip_high)
    loss = torch.where(gate, torch.zeros_like(part.loss), part.loss)
    return TokenLoss(loss, part.ratio, part.hits | {"gate": gate})
