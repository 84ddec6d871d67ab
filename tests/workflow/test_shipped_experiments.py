"""Every experiment that ships has a workflow, whatever kind of model it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dag import REPOSITORY, environment, planned

from agentbench_rl.presets import load_experiment, preset_names


@pytest.mark.parametrize("name", preset_names("experiments"))
def test_the_workflow_of_a_shipped_experiment_is_planned(name: str, tmp_path: Path) -> None:
    (tmp_path / "games").mkdir()
    base = [sys.executable, "-m", "agentbench_rl", "run", "-e", name, "--dry-run", "--directory", str(tmp_path)]
    base += ["--set", f"environment.data={tmp_path / 'games'}"]
    done = subprocess.run(base, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    experiment = load_experiment(name)
    assert planned(done.stdout)["evaluate_test"] == len(experiment.algorithms) * len(experiment.seeds)
