"""`metrics.jsonl`: the record of a job's metrics, complete with or without a tracking server."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from agentbench_rl.types import AgentRLError


class MetricsLog:
    """Append-only JSON lines, one object per step with sorted keys, on disk before `append` returns.

    resume_step: the last step whose work survives; later lines and a torn last line are dropped, because the
    job writes these steps again. -1: nothing survives, and what the file holds is not even read.
    """

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        rows = [] if resume_step == -1 else _rows(path)
        kept = rows if resume_step is None else [row for row in rows if _step(row) <= resume_step]
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".tmp")
        with scratch.open("wb") as file:
            file.write("".join(map(_line, kept)).encode())
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        self._file = path.open("ab")

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line; a non-finite number becomes null."""
        self._file.write(_line({**metrics, "step": step}).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, float]]:
    """Finite numbers of a metrics file by step, oldest first; no rows where there is no file.

    A torn last line is left out. Raises AgentRLError for any other broken line.
    """
    return [{key: value for key, value in row.items() if value is not None} for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, float | None]]:
    if not path.is_file():
        return []
    rows = []
    # A complete line ends in a newline, so what stands after the last newline was never finished.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, TypeError, KeyError) as error:
            raise AgentRLError(f"{path}, line {number}: not a line of metrics ({error!r}); was it edited?") from error
        rows.append(row)
    return rows


def _step(row: Mapping[str, float | None]) -> float:
    step = row["step"]
    assert step is not None
    return step


def _line(row: Mapping[str, float | None]) -> str:
    finite = {key: value if value is not None and math.isfinite(value) else None for key, value in row.items()}
    return json.dumps(finite, sort_keys=True, allow_nan=False) + "\n"
