"""`agentrl doctor` says what a machine offers, also where something is missing."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from agentbench_rl.cli import app, inspection


def test_memory_and_the_memory_of_every_gpu_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda index: SimpleNamespace(name=f"G{index}", total_memory=2**34)
    )
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert re.search(r"^memory +\d+\.\d GiB$", result.stdout, re.MULTILINE)
    assert re.search(r"^cuda devices +G0 \(16\.0 GiB\), G1 \(16\.0 GiB\)$", result.stdout, re.MULTILINE)


def test_a_missing_torch_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(inspection, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert re.search(r"^torch +missing$", result.stdout, re.MULTILINE)
    assert "torch cannot be imported" in result.stdout
    assert "free disk" in result.stdout
    assert isinstance(result.exception, SystemExit)
