"""Reading and writing of the contract's Parquet files, and atomic, synced publication of files."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentbench_rl.types import SCHEMA_VERSION, AgentRLError

_VERSION_KEY = b"agentbench_rl.schema"


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write rows under `schema`; equal rows give equal bytes."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    write_table(table, path)


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table; equal tables give equal bytes."""
    pq.write_table(table, path, compression="zstd", compression_level=3)


def read_frame(path: Path, schema: pa.Schema) -> pd.DataFrame:
    """Read a Parquet file of the contract; absent nullable columns are filled with nulls, numeric types are cast.

    Foreign files may lack the schema version (then it is 1), nullable columns and exact widths.
    Raises AgentRLError for a missing, truncated or newer file, a missing required column or a lossy cast.
    """
    with readable(path):
        table = open_parquet(path).read()
    columns = [checked_column(table, field, path) for field in schema]
    extra = [name for name in table.column_names if name not in schema.names]
    typed = pa.table(dict(zip(schema.names, columns, strict=True)) | {name: table.column(name) for name in extra})
    frame: pd.DataFrame = typed.to_pandas()
    return frame


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what Arrow raises for a file that is missing or broken into an AgentRLError."""
    try:
        yield
    except FileNotFoundError:
        raise AgentRLError(f"{path}: no such file; run the stage that writes it first") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise AgentRLError(
            f"{path}: not a readable Parquet file ({error}); delete it and run its stage again"
        ) from None


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file of the contract; raises AgentRLError for a missing, broken or newer one."""
    with readable(path):
        file = pq.ParquetFile(path)
    version = int((file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"1"))
    if version > SCHEMA_VERSION:
        raise AgentRLError(
            f"{path}: written under schema {version}, this version reads up to {SCHEMA_VERSION}; upgrade"
        )
    return file


def checked_column(table: pa.Table, field: pa.Field, path: Path) -> pa.ChunkedArray | pa.Array:
    """The column of a field, cast to its type, nulls where a nullable one is absent; raises AgentRLError otherwise."""
    if field.name not in table.column_names:
        if field.nullable:
            return pa.nulls(table.num_rows, field.type)
        raise AgentRLError(f"{path}: column {field.name!r} is missing (found: {', '.join(table.column_names)})")
    column = table.column(field.name)
    if not field.nullable and column.null_count:
        raise AgentRLError(f"{path}: column {field.name!r} holds {column.null_count} nulls and must hold none")
    if pa.types.is_list(column.type) and pc.list_flatten(column).null_count:
        raise AgentRLError(f"{path}: column {field.name!r} holds lists with nulls; every item needs a value")
    try:
        return column.cast(field.type, safe=not pa.types.is_floating(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise AgentRLError(f"{path}: column {field.name!r} cannot be read as {field.type}: {error}") from None


def sha256(path: Path) -> str:
    """SHA-256 of a file, or of the sorted names and hashes of a directory's files."""
    if path.is_dir():
        lines = [f"{file.relative_to(path)} {sha256(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_tree(directory: Path) -> None:
    """fsync every file and directory below `directory`."""
    for path in (*directory.rglob("*"), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, text: str) -> None:
    """Write text under a temporary name, fsync and rename; what a killed writer of this machine left is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = f".{path.name}.{socket.gethostname()}."
    for left in path.parent.glob(f"{glob.escape(begun)}*.partial"):
        process = left.name.removeprefix(begun).removesuffix(".partial")
        if process.isdigit() and not _runs(int(process)):
            left.unlink(missing_ok=True)
    partial = path.with_name(f"{begun}{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def link(source: str, target: str) -> None:
    """Give a file a second name, or, where the file system has no such thing, copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _runs(process: int) -> bool:
    """Whether a process of this machine with that number runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
