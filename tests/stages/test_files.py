"""Parquet files of the contract: what is written is read back, and what cannot be trusted is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentbench_rl.stages.files import read_frame, sha256, write_atomic, write_rows
from agentbench_rl.types import SCHEMA_VERSION, AgentRLError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("ids", pa.list_(pa.int32()), nullable=False),
        pa.field("reward", pa.float32()),
    ],
    metadata={"agentbench_rl.schema": str(SCHEMA_VERSION)},
)
ROWS: list[dict[str, Any]] = [
    {"id": "a", "step": 0, "ids": [1, 2], "reward": 0.5},
    {"id": "b", "step": 1, "ids": [], "reward": None},
]


def foreign(path: Path, **columns: Any) -> Path:
    """A file of other software: no metadata, whatever types."""
    whole = {"id": ["a", "b"], "step": [0, 1], "ids": [[1, 2], []], "reward": [0.5, None]} | columns
    pq.write_table(pa.table({name: values for name, values in whole.items() if values is not None}), path)
    return path


def test_rows_are_read_back_as_they_were_written_and_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one.parquet", "two.parquet"):
        write_rows(tmp_path / name, ROWS, SCHEMA)
    frame = read_frame(tmp_path / "one.parquet", SCHEMA)
    assert frame["id"].tolist() == ["a", "b"]
    assert [list(ids) for ids in frame["ids"]] == [[1, 2], []]
    assert frame["reward"].isna().tolist() == [False, True]
    assert sha256(tmp_path / "one.parquet") == sha256(tmp_path / "two.parquet")


def test_no_rows_are_a_file_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "empty.parquet", [], SCHEMA)
    frame = read_frame(tmp_path / "empty.parquet", SCHEMA)
    assert (len(frame), list(frame)) == (0, SCHEMA.names)


def test_a_foreign_file_without_version_optional_columns_and_exact_widths_is_read(tmp_path: Path) -> None:
    file = foreign(tmp_path / "x.parquet", step=pa.array([0, 1], pa.int64()), reward=None, extra=["k", "l"])
    frame = read_frame(file, SCHEMA)
    assert str(frame["step"].dtype) == "int32"
    assert frame["reward"].isna().all()
    assert frame["extra"].tolist() == ["k", "l"]


def test_a_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    newer = SCHEMA.with_metadata({"agentbench_rl.schema": str(SCHEMA_VERSION + 1)})
    write_rows(tmp_path / "x.parquet", ROWS, newer)
    with pytest.raises(AgentRLError, match=r"x\.parquet: written under schema 2, this version reads up to 1; upgrade"):
        read_frame(tmp_path / "x.parquet", SCHEMA)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": None}, "column 'step' is missing (found: id, ids, reward)"),
        ({"step": [0, None]}, "column 'step' holds 1 nulls and must hold none"),
        ({"step": [0.0, 1.5]}, "column 'step' cannot be read as int32"),
        ({"step": [0, 2**40]}, "column 'step' cannot be read as int32"),
        ({"step": ["zero", "one"]}, "column 'step' cannot be read as int32"),
        ({"ids": [[1.5], [2.0]]}, "column 'ids' cannot be read as list"),
        ({"ids": [[1, None], []]}, "column 'ids' holds lists with nulls"),
        ({"reward": ["much", "little"]}, "column 'reward' cannot be read as float"),
    ],
)
def test_what_cannot_be_read_without_loss_is_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentRLError) as error:
        read_frame(foreign(tmp_path / "x.parquet", **columns), SCHEMA)
    assert message in str(error.value)
    assert "x.parquet" in str(error.value)


@pytest.mark.parametrize("keep", [0, 3, 200])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "x.parquet"
    write_rows(file, ROWS, SCHEMA)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(AgentRLError, match=r"x\.parquet: not a readable Parquet file"):
        read_frame(file, SCHEMA)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match=r"x\.parquet: no such file; run the stage"):
        read_frame(tmp_path / "x.parquet", SCHEMA)


def test_directories_named_like_partitions_add_no_columns(tmp_path: Path) -> None:
    directory = tmp_path / "lr=0.1" / "step=7"
    directory.mkdir(parents=True)
    write_rows(directory / "x.parquet", ROWS, SCHEMA)
    frame = read_frame(directory / "x.parquet", SCHEMA)
    assert list(frame) == SCHEMA.names
    assert frame["step"].tolist() == [0, 1]


def test_the_hash_of_a_directory_tells_names_and_contents_but_not_its_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        write_atomic(tmp_path / place / "a" / "x", "text")
    same = sha256(tmp_path / "one")
    assert sha256(tmp_path / "two") == same
    write_atomic(tmp_path / "two" / "a" / "x", "other")
    assert sha256(tmp_path / "two") != same
    (tmp_path / "one" / "a" / "x").rename(tmp_path / "one" / "a" / "y")
    assert sha256(tmp_path / "one") != same


def test_an_atomic_write_that_fails_keeps_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "x", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text(encoding="utf-8") == "old"


def test_what_a_killed_writer_left_is_removed_and_a_running_ones_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    of_dead, of_living = (tmp_path / f".a.json.{host}.{pid}.partial" for pid in (ended.pid, os.getppid()))
    of_other_host = tmp_path / f".a.json.elsewhere.{ended.pid}.partial"
    for partial in (of_dead, of_living, of_other_host):
        partial.write_text("{", encoding="utf-8")
    write_atomic(tmp_path / "a.json", "{}")
    assert set(tmp_path.iterdir()) == {tmp_path / "a.json", of_living, of_other_host}
