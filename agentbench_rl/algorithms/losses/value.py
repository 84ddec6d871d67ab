"""Value loss: l = max((v - G)^2, (clip(v, v_old - clip, v_old + clip) - G)^2), without a factor 1/2.

Source: PPO's reference implementation (OpenAI baselines).
"""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: float | None) -> Tensor:
    """Loss of every value [N]; no clip: the squared error."""
    error = (values - targets).square()
    if clip is None:
        return error
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(error, (bounded - targets).square())
