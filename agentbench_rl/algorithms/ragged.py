"""Lists of numbers per row as one flat array [S], and back, without a Python object per row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from agentbench_rl.types import AgentRLError


def list_lengths(column: pd.Series) -> np.ndarray:
    """Number of items of every row's list [rows], int64; 0 for null."""
    return np.diff(_arrow(column).offsets.to_numpy())


def flatten(column: pd.Series, lengths: np.ndarray, ids: pd.Series, name: str) -> np.ndarray:
    """Items of all rows [S], float32; raises AgentRLError for a list of another length than `lengths` [rows] says."""
    array = _arrow(column)
    found = np.diff(array.offsets.to_numpy())
    wrong = np.flatnonzero(found != lengths)
    if len(wrong):
        row = int(wrong[0])
        raise AgentRLError(f"{name} of turn {ids.iloc[row]!r}: {found[row]} values for {lengths[row]} response tokens")
    return np.asarray(array.flatten().to_numpy(zero_copy_only=False), dtype=np.float32)


def to_lists(flat: np.ndarray, lengths: np.ndarray) -> pd.Series:
    """Column of lists of float32 from their items [S] and lengths [rows]; no copy."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, type=pa.float32()))
    return pd.Series(lists, dtype=pd.ArrowDtype(pa.list_(pa.float32())))


def _arrow(column: pd.Series) -> pa.ListArray:
    array = pa.array(column, from_pandas=True)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return pa.array([], pa.list_(pa.float32())) if pa.types.is_null(array.type) and not len(array) else array
