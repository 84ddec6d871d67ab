"""Runs whose rollouts are made during updates: staged against online, and killed ones against those that were not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from dag import REPOSITORY, environment, results, run
from tiny_experiment import RAW

from agentbench_rl.stages.manifest import locked
from agentbench_rl.types import AgentRLError

pytestmark = pytest.mark.extras
ITERATIONS = 3
METHOD = RAW["algorithms"]["rloo"] | {"schedule": {"kind": "one_step_off"}}
EXPERIMENT = RAW | {
    "algorithms": {"ahead": METHOD},
    "training": RAW["training"] | {"iterations": ITERATIONS},
    "iterations_per_job": ITERATIONS,
}


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished online run."""
    directory = tmp_path_factory.mktemp("online")
    run(directory, raw=EXPERIMENT)
    return directory


def test_staged_and_online_runs_give_the_same_bytes(online: Path, tmp_path: Path) -> None:
    run(tmp_path, "--set", "mode=staged", raw=EXPERIMENT)
    assert results(tmp_path) == results(online)


def free(directory: Path) -> bool:
    """Whether no process writes into a stage's directory."""
    try:
        with locked(directory):
            return True
    except AgentRLError:
        return False


def test_the_process_that_samples_ahead_ends_with_the_loop_and_the_run_goes_on_to_the_same_files(
    online: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False), encoding="utf-8")
    base = [sys.executable, "-m", "agentbench_rl", "train", "-a", "ahead", "-e", str(file)]
    command = [*base, "--results", str(tmp_path / "results")]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment())
    ahead = tmp_path / "results" / "tiny" / "runs" / "ahead" / "seed0" / "iteration001" / "rollout" / ".partial"
    deadline = time.monotonic() + 600
    while not ahead.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while not free(ahead.parent):
        assert time.monotonic() < deadline, "the process that samples ahead outlives the loop"
        time.sleep(0.05)
    assert not (ahead.parent / "manifest.json").exists()
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True)
    found, expected = (results(directory) for directory in (tmp_path, online))
    runs = {name: content for name, content in expected.items() if name.startswith("runs/")}
    assert {name: found.get(name) for name in runs} == runs
