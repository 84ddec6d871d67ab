"""Policy gradient: l = -A logp, without importance ratio.

Source: R. J. Williams, "Simple statistical gradient-following algorithms" (1992); GPG (arXiv 2504.02546).
"""

from __future__ import annotations

from agentbench_rl.algorithms.losses.parts import TokenLoss, TrainedTokens
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.config.loss import PolicyGradient


def policy_gradient(tokens: TrainedTokens, settings: PolicyGradient) -> TokenLoss:
    """Loss of every token [T] and its ratio, which the loss doesn't use."""
    return TokenLoss(-tokens.advantage * tokens.logp, token_ratio(tokens).detach(), {})
