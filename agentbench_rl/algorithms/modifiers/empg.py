"""A_i = A_i * g_i + zeta * f_{i+1}, minus its mean over the batch.

H_i: mean token entropy of turn i, as a share of the way from the lowest of the batch to the highest.
g_i = exp(-k H_i) / mean exp(-k H): a certain turn counts more. f_{i+1} = exp(-k' H_{i+1}): a turn that leads to a
certain one is paid; the last turn of an episode gets none.
Source: EMPG (arXiv 2509.09265, equations 9 to 12).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.modifiers.entropies import turn_entropies
from agentbench_rl.algorithms.trajectories import next_values
from agentbench_rl.config.advantage import Empg
from agentbench_rl.types import AgentRLError

_GUARD = 1e-8


def empg(batch: Batch, credit: Credit, settings: Empg) -> Credit:
    """Rescaled advantages [P]; raises AgentRLError without token entropies, or where every token has its own credit."""
    if credit.advantage is None:
        raise AgentRLError("modifiers: empg scales one advantage per turn; this estimator has one per token")
    entropy = turn_entropies(batch)[batch.rows.row]
    lowest, highest = entropy.min(), entropy.max()
    entropy = (entropy - lowest) / (highest - lowest + _GUARD)
    certainty = np.exp(-settings.k * entropy)
    scaled = credit.advantage * certainty / (_mean(certainty) + _GUARD)
    scaled += settings.zeta * next_values(batch.rows, np.exp(-settings.future_k * entropy))
    return replace(credit, advantage=scaled - _mean(scaled))


def _mean(values: np.ndarray) -> float:
    """Mean in sorted order: the order of the rows changes no bit."""
    return float(np.sort(values).sum()) / len(values)
