"""Checkpoints that nothing reads again may go; what was trained and what is reused stays the same."""

from __future__ import annotations

from pathlib import Path

from tiny_experiment import run_training, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest


def _experiment(checkpoints: str) -> Experiment:
    training = {"iterations": 3, "learning_rate": 1e-3, "checkpoints": checkpoints}
    return tiny(training=training, sft={"steps": 2, "batch_tokens": 512}, evaluation={"every": 3})


def test_pruned_run_keeps_what_is_needed_reaches_the_same_policy_and_reuses_its_stages(tmp_path: Path) -> None:
    whole, pruned = Layout(tmp_path / "whole"), Layout(tmp_path / "pruned")
    run_training(_experiment("all"), whole, "rloo")
    run_training(_experiment("validated"), pruned, "rloo")

    updates = [pruned.stage("rloo", 0, iteration, "update") for iteration in range(3)]
    assert [(update / "policy").exists() for update in updates] == [False, False, True]
    assert [(update / "trainer").exists() for update in updates] == [False, False, True]
    last = "policy/model.safetensors"
    assert (updates[2] / last).read_bytes() == (whole.stage("rloo", 0, 2, "update") / last).read_bytes()

    finished = [read_manifest(update)["finished"] for update in updates]
    run_training(_experiment("validated"), pruned, "rloo")
    assert [read_manifest(update)["finished"] for update in updates] == finished
