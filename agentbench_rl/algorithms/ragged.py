"""Lists of numbers per row as one flat array [S], and back, without a Python object per row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from agentbench_rl.types import AgentRLError

_BLOCK = 1 << 20
_MOST_ITEMS = np.iinfo(np.int32).max


def list_lengths(column: pd.Series) -> np.ndarray:
    """Number of items of every row's list [rows], int64; 0 for null."""
    lengths = [pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False) for chunk in _chunks(column)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *lengths]).astype(np.int64)


def flatten(column: pd.Series, lengths: np.ndarray, ids: pd.Series, name: str) -> np.ndarray:
    """Items of all rows [S], float32.

    Raises AgentRLError for a list of another length than `lengths` [rows] says, and for an item that is not finite.
    """
    found = list_lengths(column)
    wrong = np.flatnonzero(found != lengths)
    if len(wrong):
        row = int(wrong[0])
        raise AgentRLError(f"{name} of turn {ids.iloc[row]!r}: {found[row]} values for {lengths[row]} response tokens")
    parts = [np.zeros(0, dtype=np.float32)]
    parts += [pc.list_flatten(chunk).to_numpy(zero_copy_only=False) for chunk in _chunks(column)]
    flat = parts[1].astype(np.float32, copy=False) if len(parts) == 2 else np.concatenate(parts, dtype=np.float32)
    for block in blocks(len(flat)):
        bad = np.flatnonzero(~np.isfinite(flat[block]))
        if len(bad):
            row = int(np.searchsorted(np.cumsum(lengths), block.start + bad[0], side="right"))
            raise AgentRLError(
                f"{name} of turn {ids.iloc[row]!r}: a value is null or not finite; score the turns again"
            )
    return flat


def to_lists(flat: np.ndarray, lengths: np.ndarray) -> pd.Series:
    """Column of lists of float32 from their items [S] and lengths [rows]; no copy."""
    if len(flat) > _MOST_ITEMS:
        raise AgentRLError(f"{len(flat)} tokens are too many for one file of advantages; score the groups in parts")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, type=pa.float32()))
    return pd.Series(lists, dtype=pd.ArrowDtype(pa.list_(pa.float32())))


def row_sums(flat: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sum of every row's items [rows], float64, from the items [S] and lengths [rows]; 0 for an empty row."""
    filled = lengths > 0
    sums = np.zeros(len(lengths))
    if filled.any():
        sums[filled] = np.add.reduceat(flat, (np.cumsum(lengths) - lengths)[filled], dtype=np.float64)
    return sums


def blocks(size: int) -> Iterator[slice]:
    """Slices that cut `size` items into blocks that fit a processor's cache."""
    return (slice(first, min(first + _BLOCK, size)) for first in range(0, size, _BLOCK))


def _chunks(column: pd.Series) -> list[pa.ListArray]:
    array = pa.array(column, from_pandas=True)
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return [chunk for chunk in chunks if len(chunk)]
