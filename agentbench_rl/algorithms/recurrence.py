"""y_t = x_t + c * y_{t+1} within each segment, y = x at its last item: returns (c = gamma), GAE (c = gamma * lambda).

All segments take a step at once, from their last items backwards; a segment's result depends on it alone, to the bit.
"""

from __future__ import annotations

import numpy as np


def reverse_recurrence(items: np.ndarray, lengths: np.ndarray, factor: float) -> np.ndarray:
    """The recurrence over `items` [n], float64, of consecutive segments of `lengths` [segments] >= 1."""
    result = items.astype(np.float64)
    longest_first = np.argsort(-lengths, kind="stable")
    position = (np.cumsum(lengths) - 1)[longest_first]
    carried = result[position]
    alive = len(lengths) - np.cumsum(np.bincount(lengths))
    for count in alive[1:-1]:
        position = position[:count] - 1
        carried = result[position] + factor * carried[:count]
        result[position] = carried
    return result
