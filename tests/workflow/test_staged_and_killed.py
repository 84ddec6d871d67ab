"""Staged against online, and a run that was killed against one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from dag import REPOSITORY, command, environment, results, run
from tiny_experiment import RAW

pytestmark = pytest.mark.extras
#: Beside the methods without a critic, one with it.
PPO = {"base": "ppo", "topology": {"group_size": 2}, "critic": {"learning_rate": 0.01}}
#: And one whose iterations are many rounds.
ROUNDS = {
    "source": "3SPO",
    "topology": {"kind": "expand", "max_actions": 3, "max_responses": 12},
    "schedule": {"kind": "post_step"},
    "reward": {"invalid_action_penalty": 0.1},
    "advantage": {"estimator": "state_score"},
}
#: And one whose iterations are loops, and begin with rounds of another policy.
LOOPS = {
    "source": "RSPO",
    "topology": {"group_size": 2},
    "schedule": {"kind": "reward_swap", "period": 2, "share": 0.25, "buffer_tasks": 3},
    "reward": {"invalid_action_penalty": 0.1},
    "advantage": {"estimator": "group_mean"},
    "loss": {"kind": "moved_centre"},
}
EXPERIMENT = RAW | {"algorithms": RAW["algorithms"] | {"ppo": PPO, "rounds": ROUNDS, "loops": LOOPS}}


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished online run."""
    directory = tmp_path_factory.mktemp("online")
    run(directory, "--set", "iterations_per_job=1", raw=EXPERIMENT)
    return directory


def test_staged_and_online_runs_give_the_same_bytes(online: Path, tmp_path: Path) -> None:
    run(tmp_path, "--set", "mode=staged", raw=EXPERIMENT)
    found = results(tmp_path)
    assert found == results(online)
    assert "runs/ppo/seed0/iteration001/update/critic/critic.safetensors" in found
    assert "runs/rounds/seed0/iteration001/rounds/002/rollout/states.parquet" in found
    assert "runs/loops/seed0/iteration001/replay/drawn.parquet" in found


@pytest.mark.parametrize(
    "last",
    [
        "*/seed0/iteration001/rollout",
        "rounds/seed0/iteration000/rounds/001/score",
        "loops/seed0/iteration000/rounds/001/advantage",
        "loops/seed0/iteration001/score",
    ],
)
def test_killed_run_recovers_to_the_same_files(online: Path, tmp_path: Path, last: str) -> None:
    process = subprocess.Popen(
        command(tmp_path, raw=EXPERIMENT), cwd=REPOSITORY, env=environment(), start_new_session=True
    )
    runs = tmp_path / "results" / "tiny" / "runs"
    deadline = time.monotonic() + 600
    while not list(runs.glob(f"{last}/manifest.json")):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run(tmp_path, "--recover", raw=EXPERIMENT)
    assert results(tmp_path) == results(online)
