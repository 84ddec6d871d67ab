"""Reading a few columns of a large Parquet file: what is not asked for is never decoded, and lists become one array."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentbench_rl.stages.files import checked_column, open_parquet, readable
from agentbench_rl.types import AgentRLError

_BATCH = 1 << 14


def read_columns(path: Path, schema: pa.Schema, needed: Collection[str], names: Collection[str]) -> pd.DataFrame:
    """The columns `names` of a Parquet file of the contract, of which foreign files must have the `needed` ones.

    Columns that are absent, or null in every row, are absent in the frame. Lists of float32 are Arrow columns over one
    flat array. Raises AgentRLError as `read_frame` does.
    """
    file = open_parquet(path)
    fields = [field.with_nullable(field.name not in needed) for field in schema if field.name in names]
    there = [field for field in fields if field.name in file.schema_arrow.names or not field.nullable]
    lists = [field for field in there if field.type == pa.list_(pa.float32())]
    with readable(path):
        plain = [field.name for field in there if field not in lists and field.name in file.schema_arrow.names]
        table = file.read(columns=plain, use_threads=False)
    columns = {field.name: checked_column(table, field, path) for field in there if field not in lists}
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    for field in lists:
        frame[field.name] = pd.Series(_float_lists(file, field.name, path), dtype=pd.ArrowDtype(field.type))
    return frame[[name for name in frame if name in needed or frame.empty or not frame[name].isna().all()]]


def read_lengths(path: Path, name: str) -> np.ndarray | None:
    """Number of items of every row's list [rows], int64, 0 for null; None where the file has no such column."""
    file = open_parquet(path)
    if name not in file.schema_arrow.names:
        return None
    lengths = [np.zeros(0, dtype=np.int64)]
    for column in _batches(file, name, path):
        lengths.append(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64))
    return np.concatenate(lengths)


def _float_lists(file: pq.ParquetFile, name: str, path: Path) -> pa.ListArray:
    """A list column as one array of float32, NaN for null items: many chunks would have to be copied to become one."""
    flat = np.empty(_items_at_most(file, name), dtype=np.float32)
    lengths, nulls, end = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=bool)], 0
    for column in _batches(file, name, path):
        items = pc.list_flatten(column)
        begin, end = end, end + len(items)
        flat[begin:end] = items.to_numpy(zero_copy_only=False)
        lengths.append(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False))
        nulls.append(column.is_null().to_numpy(zero_copy_only=False))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
    if end > np.iinfo(np.int32).max:
        raise AgentRLError(f"{path}: column {name!r} holds {end} items, too many to read at once; split the file")
    mask = pa.array(np.concatenate(nulls))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(flat[:end]), mask=mask)


def _items_at_most(file: pq.ParquetFile, name: str) -> int:
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    leaves = [group.column(place) for group in groups for place in range(group.num_columns)]
    return sum(leaf.num_values for leaf in leaves if leaf.path_in_schema.split(".")[0] == name)


def _batches(file: pq.ParquetFile, name: str, path: Path) -> Iterator[pa.Array]:
    kind = file.schema_arrow.field(name).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise AgentRLError(f"{path}: column {name!r} must hold lists, found {kind}")
    with readable(path):
        for batch in file.iter_batches(_BATCH, columns=[name], use_threads=False):
            yield batch.column(0)
