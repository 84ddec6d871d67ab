"""(x - mu) / sqrt(v + 1e-8), over all tokens of the batch: mu their mean, v their sample variance (n - 1).

Items are summed per segment first, and the segments' sums in sorted order: the order of the rows changes no bit.
Items that are equal but for rounding are worth 0. Source: `masked_whiten` of public PPO code (TRL, verl).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agentbench_rl.types import AgentRLError

_GUARD = 1e-8
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Moments:
    """Of segments of tokens: count [k], mean [k], and squares [k], the sum of squared deviations from that mean."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    def pooled(self) -> tuple[float, float]:
        """Mean, and square root of the guarded sample variance, over the tokens of all segments.

        The latter is infinite where the items are equal. Raises AgentRLError for a single token: it has no variance.
        """
        total = int(self.count.sum())
        if total < 2:
            raise AgentRLError(f"whitening needs at least two response tokens; the batch has {total}")
        mean = float(np.sort(self.count * self.mean).sum()) / total
        variance = float(np.sort(self.squares + self.count * (self.mean - mean) ** 2).sum()) / (total - 1)
        return mean, math.inf if variance <= (_ROUNDING * mean) ** 2 else math.sqrt(variance + _GUARD)


def segment_moments(items: np.ndarray, lengths: np.ndarray) -> Moments:
    """Moments of consecutive segments of `items` [n], float64, of `lengths` [k] >= 1."""
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(items, starts) / lengths
    deviation = items - np.repeat(mean, lengths)
    return Moments(lengths, mean, np.add.reduceat(deviation * deviation, starts))


def pool(parts: list[Moments]) -> Moments:
    """The segments of all parts."""
    names = ("count", "mean", "squares")
    return Moments(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def whiten(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Whitened `values` [n], each of which stands for `weights` [n] equal tokens; weight 0: no part, and result 0."""
    counted = weights > 0
    result = np.zeros(len(values))
    if counted.any():
        chosen = values[counted]
        mean, std = Moments(weights[counted], chosen, np.zeros(len(chosen))).pooled()
        result[counted] = (chosen - mean) / std
    return result
