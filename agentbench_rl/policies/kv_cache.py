"""A preallocated key-value cache whose rows grow independently, as transformers' attention layers expect one.

A forward pass sees the first n rows and the first `span` positions of each as views: nothing is copied for a token.
Rows that leave the batch are swapped out of the front, which copies one row instead of gathering all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_MULTIPLE = 64


class RowCache:
    """Keys and values [layers, 2, slots, positions, key-value heads, head size]; the last position is scratch space."""

    def __init__(self, config: Any, slots: int, max_context: int, dtype: torch.dtype, device: str) -> None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, slots, max_context + 1, heads, size)
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)
        self._keys = torch.arange(max_context + 1, device=device)
        self.scratch = max_context
        self._first = self._last = self._span = 0

    def aim(self, first: int, positions: Tensor, longest: int) -> Tensor:
        """Set where the next forward pass writes, and return its additive mask [rows, 1, queries, span].

        `positions` [rows, queries]: position of each new token in its row (`scratch` for padding), for the rows from
        `first` on; `longest`: the largest real position.
        """
        self._first, self._last = first, first + len(positions)
        self._span = min(-(-(longest + 1) // _MULTIPLE) * _MULTIPLE, self.scratch)
        self._rows = torch.arange(self._first, self._last, device=positions.device)[:, None]
        self._positions = positions
        hidden = self._keys[: self._span] > positions[..., None]
        mask = torch.zeros(hidden.shape, dtype=self._buffer.dtype, device=positions.device)
        return mask.masked_fill_(hidden, -torch.inf)[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [rows, heads, queries, size]; return everything to attend to."""
        for store, new in zip(self._buffer[layer], (keys, values), strict=True):
            store[self._rows, self._positions] = new.transpose(1, 2)
        window = self._buffer[layer, :, self._first : self._last, : self._span].transpose(2, 3)
        return window[0], window[1]

    def move(self, targets: Sequence[int], sources: Sequence[int], used: int) -> None:
        """Permute rows: `targets[i]` receives the first `used` positions of `sources[i]`."""
        part = self._buffer[:, :, :, :used]
        part[:, :, list(targets)] = part[:, :, list(sources)]

    def copy(self, source: int, target: int, used: int) -> None:
        """Overwrite the first `used` positions of row `target` with those of row `source`."""
        self._buffer[:, :, target, :used] = self._buffer[:, :, source, :used]
