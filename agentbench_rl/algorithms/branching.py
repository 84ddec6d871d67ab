"""p = clip(base + weight * (H - H_first), 0, 1): how likely a chain is forked after a tool's answer.

H: entropy of the first tokens that follow the answer; H_first: that of the chain's first segment.
Source: ARPO (arXiv 2507.19849, section 3.1).
"""

from __future__ import annotations

import numpy as np


def branch_probability(entropy_change: np.ndarray, base: float = 0.5, weight: float = 0.2) -> np.ndarray:
    """Probability of a fork for each change of entropy H - H_first [n]."""
    return np.clip(base + weight * entropy_change, 0.0, 1.0)
