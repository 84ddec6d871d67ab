"""The benchmark for GPUs, tried on a CPU: it makes every part, and its gradients agree."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_gpu_benchmark_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    gpu = importlib.import_module("gpu")
    out = tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--tiny", "--repeats", "1", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert not ended.value.code
    found = json.loads(out.read_text(encoding="utf-8"))
    assert not found["skipped"]
    assert not found["failed"]
    assert found["masks"].startswith("dense")
    assert set(found["check"]) == {"rows", "packed", "tree"}
    assert max(found["check"].values()) < 1e-5
    assert found["sampling"]["tokens"] > 0
    assert found["groups_tree"]["computed_tokens"] < found["groups_packed"]["computed_tokens"]
    assert found["chains_packed"]["masked_batches"] > 0
    assert found["groups_tree"]["mfu"] is None


def test_parts_that_fail_or_have_no_time_left_are_told_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    gpu = importlib.import_module("gpu")
    run = gpu.Run(gpu.torch.device("cpu"), gpu.time.monotonic() + 60, 1, tmp_path / "gpu.json")
    run.part("first", lambda _: 1)
    run.part("second", lambda _: [][0])
    run.until = gpu.time.monotonic()
    run.part("third", lambda _: 3)
    written = json.loads(run.out.read_text(encoding="utf-8"))
    assert written == {"first": 1, "skipped": ["third"], "failed": {"second": "IndexError: list index out of range"}}


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("GTX", None)],
)
def test_peaks_are_found_by_device_name(monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    assert importlib.import_module("gpu").peak_operations(name) == peak
