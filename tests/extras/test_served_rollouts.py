"""Stages that sample with a server write what they write without one, bit by bit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tiny_experiment import lasting_files, tiny

from agentbench_rl.config import Json
from agentbench_rl.stages.evaluate import evaluate_start
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.types import silent

pytestmark = pytest.mark.extras


def test_no_result_depends_on_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny()
    file, settings = tmp_path / "server.json", tmp_path / "tiny.yaml"
    resolved: Json = experiment.model_dump(mode="json")
    settings.write_text(yaml.safe_dump(resolved), encoding="utf-8")
    prepare_start(experiment, Layout(tmp_path / "start"), lambda _: silent)
    served = Layout(shutil.copytree(tmp_path / "start", tmp_path / "served"))
    command = [sys.executable, "-m", "agentbench_rl", "serve", "--file", str(file), "--experiment", str(settings)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        until = time.monotonic() + 120.0
        while not file.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        monkeypatch.setenv("AGENTRL_SERVER", str(file))
        evaluate_start(experiment, served, "test")
        rollout(experiment, served, "grpo", 0, 0)
    finally:
        process.terminate()
        process.wait()
    monkeypatch.delenv("AGENTRL_SERVER")
    evaluate_start(experiment, Layout(tmp_path / "start"), "test")
    rollout(experiment, Layout(tmp_path / "start"), "grpo", 0, 0)
    assert lasting_files(tmp_path / "start") == lasting_files(tmp_path / "served")
