"""A_t = A_t * (1 + weight * z(H_t)) for every token t, z(H): whitened entropy over all tokens of the batch.

Source: entropy-aware advantages of AEPO (arXiv 2510.14545, section 3.2).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.modifiers.entropies import entropy_scores
from agentbench_rl.config.advantage import EntropyScale


def entropy_scale(batch: Batch, credit: Credit, settings: EntropyScale) -> Credit:
    """Rescaled advantages per token [S]; raises AgentRLError without token entropies."""
    advantages = credit.token_advantages
    if advantages is None:
        assert credit.advantage is not None
        advantages = np.repeat(batch.per_row(credit.advantage), batch.lengths).astype(np.float32)
    scaled = advantages * (1.0 + settings.weight * entropy_scores(batch))
    return replace(credit, advantage=None, token_advantages=scaled)
