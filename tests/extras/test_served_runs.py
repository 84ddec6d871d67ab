"""`agentrl run --serve` as a whole: its results, and what the death of its server leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tiny_experiment import RAW, lasting_files

from agentbench_rl.config import Json
from agentbench_rl.stages.layout import Layout
from tests.workflow.dag import REPOSITORY, command, environment, results, run

pytestmark = pytest.mark.extras


def served(directory: Path, mode: str = "online") -> list[str]:
    return ["--serve", "--results", str(directory / "results"), "--set", f"mode={mode}"]


def differing(directory: Path, expected: Layout) -> set[str]:
    found, wanted = results(directory), lasting_files(expected.root)
    return {name for name in wanted if found.get(name) != wanted[name] and "segments/" not in name}


def server_of(parent: int) -> int:
    """The process of `agentrl serve` that a process started."""
    for child in map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
        if "serve" in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
            return child
    raise AssertionError("there is no server")


@pytest.mark.parametrize("mode", ["online", "staged"])
def test_a_served_run_gives_the_bytes_of_one_without(trained: Layout, tmp_path: Path, mode: str) -> None:
    run(tmp_path, *served(tmp_path, mode))
    assert differing(tmp_path, trained) == set()


def test_a_run_whose_server_dies_says_so_and_goes_on_when_run_again(trained: Layout, tmp_path: Path) -> None:
    root = tmp_path / "results" / "tiny"
    process = subprocess.Popen(
        command(tmp_path, *served(tmp_path)),
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until = time.monotonic() + 600
    while not list(root.glob("runs/*/seed0/iteration000/rollout/manifest.json")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(server_of(process.pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "does not answer" in output
    assert "the server ended before the run (exit code -9); finished stages are kept" in output
    assert not (root / "report" / "report.html").exists()
    run(tmp_path, *served(tmp_path))
    assert differing(tmp_path, trained) == set()


@pytest.mark.parametrize("mode", ["online", "staged"])
def test_a_run_with_one_engine_for_all_jobs_and_adapters(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("peft")
    architecture = RAW["model"]["architecture"] | {"hidden_size": 64, "intermediate_size": 96}
    changed: Json = {
        "model": {"base": "tiny", "architecture": architecture},
        "rollout": RAW["rollout"] | {"sampler": "vllm", "vllm": {"cpu_cache_gb": 1}},
        "training": RAW["training"] | {"lora": {"rank": 2}},
    }
    run(tmp_path, *served(tmp_path, mode), raw=RAW | changed)
    root = tmp_path / "results" / "tiny"
    assert (root / "report" / "report.html").exists()
    for policy in root.glob("runs/*/seed0/iteration001/update/policy"):
        assert (policy / "adapter" / "adapter_model.safetensors").exists()
        assert (policy / "base" / "model.safetensors").samefile(root / "sft" / "policy" / "model.safetensors")
