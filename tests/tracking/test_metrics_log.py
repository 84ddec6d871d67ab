from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentbench_rl.tracking.metrics_log import MetricsLog, read
from agentbench_rl.types import AgentRLError


def test_one_line_per_step_with_sorted_keys(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(1, {"loss": 0.5, "entropy": 1.25})
    assert path.read_bytes() == b'{"entropy": 1.25, "loss": 0.5, "step": 1}\n'
    log.close()


def test_a_resumed_job_leaves_the_same_bytes_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    log = MetricsLog(whole)
    for step in range(6):
        log.append(step, {"loss": 1 / (step + 1), "ratio": float("nan")})
    log.close()
    log = MetricsLog(resumed)
    for step in range(5):
        log.append(step, {"loss": 1 / (step + 1), "ratio": float("nan")})
    log.close()
    with resumed.open("ab") as file:
        file.write(b'{"loss": 0.1, "st')
    log = MetricsLog(resumed, resume_step=2)
    for step in range(3, 6):
        log.append(step, {"loss": 1 / (step + 1), "ratio": float("nan")})
    log.close()
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_log_that_starts_anew_does_not_mind_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"loss"\n\xff\xfe\n')
    with pytest.raises(AgentRLError, match="line 1"):
        MetricsLog(path, resume_step=0)
    log = MetricsLog(path, resume_step=-1)
    log.append(0, {"loss": 0.5})
    log.close()
    assert read(path) == [{"loss": 0.5, "step": 0}]


def test_numbers_that_json_does_not_know_are_null_in_the_file_and_absent_when_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(0, {"a": float("inf"), "b": float("nan"), "c": 2.0})
    log.close()
    assert json.loads(path.read_text()) == {"a": None, "b": None, "c": 2.0, "step": 0}
    assert read(path) == [{"c": 2.0, "step": 0}]


def test_a_torn_last_line_is_left_out_and_a_broken_line_inside_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"loss": 1, "step": 0}\n{"loss": 2')
    assert read(path) == [{"loss": 1, "step": 0}]
    path.write_bytes(b'{"loss": 1, "step": 0}\n{"loss"\n{"loss": 3, "step": 2}\n')
    with pytest.raises(AgentRLError, match="line 2"):
        read(path)
    assert read(tmp_path / "absent.jsonl") == []
