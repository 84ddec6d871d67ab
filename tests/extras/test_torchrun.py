"""The command line under torchrun, with two processes on a CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_experiment import RAW, tiny

from agentbench_rl.stages.files import write_atomic
from agentbench_rl.stages.layout import Layout

pytestmark = pytest.mark.extras
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def agentrl(command: str, layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of agentrl on the tiny experiment in two processes."""
    if not (layout.root / "experiment.json").exists():
        write_atomic(layout.root / "experiment.json", tiny().model_dump_json())
    experiment = layout.root.parent / "tiny.yaml"
    experiment.write_text(yaml.safe_dump(RAW))
    of = [] if command == "sft" else ["-a", "rloo"]
    where = ["-e", str(experiment), "--results", str(layout.root.parent), *arguments]
    return subprocess.run(
        [*TORCHRUN, "-m", "agentbench_rl", command, *of, *where],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def assert_close(found: Path, expected: Path) -> None:
    ours, theirs = (load_file(of / "policy" / "model.safetensors") for of in (found, expected))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4)


def test_sft_and_score_in_two_processes(trained: Layout, trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    out = layout.stage("rloo", 0, 0, "score")
    for command, directory in (("score", out), ("sft", layout.sft)):
        shutil.rmtree(directory)
        done = agentrl(command, layout)
        assert done.returncode == 0, done.stderr
        assert json.loads((directory / "manifest.json").read_text())["processes"] == 2
    assert_close(layout.sft, trained.sft)
    found, expected = (pd.read_parquet(of.stage("rloo", 0, 0, "score") / "scores.parquet") for of in (layout, trained))
    assert found["turn_id"].tolist() == expected["turn_id"].tolist()
    ours, theirs = (np.concatenate(frame["old_logprobs"].tolist()) for frame in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_update_and_train_in_two_processes(trained: Layout, trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    for iteration in range(2):
        shutil.rmtree(layout.stage("rloo", 0, iteration, "update"))
    done = agentrl("update", layout)
    assert done.returncode == 0, done.stderr
    out = layout.stage("rloo", 0, 0, "update")
    assert_close(out, trained.stage("rloo", 0, 0, "update"))
    assert json.loads((out / "manifest.json").read_text())["processes"] == 2
    done = agentrl("train", layout)
    assert done.returncode == 0, done.stderr
    assert json.loads((layout.stage("rloo", 0, 1, "update") / "manifest.json").read_text())["processes"] == 2
    assert layout.segment("rloo", 0, 1).exists()


def test_mistakes_end_all_processes_with_their_message(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    refused = agentrl("rollout", layout)
    assert refused.returncode != 0
    assert "agentrl: this command runs in one process" in refused.stderr
    shutil.rmtree(layout.stage("rloo", 0, 0, "update"))
    scores = layout.stage("rloo", 0, 0, "score") / "scores.parquet"
    if scores.exists():
        scores.write_bytes(scores.read_bytes()[:100])
    advantages = layout.stage("rloo", 0, 0, "advantage") / "advantages.parquet"
    advantages.write_bytes(advantages.read_bytes()[:100])
    broken = agentrl("update", layout)
    assert broken.returncode != 0
    assert "not a readable Parquet file" in broken.stderr
    assert not (layout.stage("rloo", 0, 0, "update") / "manifest.json").exists()
