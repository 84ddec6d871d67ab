"""Torch's threads: bits on a CPU depend on their number."""

from __future__ import annotations


def use_threads(threads: int) -> None:
    """Fix torch's thread count and its deterministic algorithms."""
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
