"""Iterations that sample while the one before them updates: whose rollouts, which ratio, in any order of jobs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny_experiment import RAW, lasting_files, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages import ahead as sampling_ahead
from agentbench_rl.stages import train as loop
from agentbench_rl.stages.advantage import advantage
from agentbench_rl.stages.evaluate import evaluate_validation
from agentbench_rl.stages.files import sha256
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.stages.score import score
from agentbench_rl.stages.train import train
from agentbench_rl.stages.update import update
from agentbench_rl.types import AgentRLError, InfrastructureError, silent

ITERATIONS = 3


def experiment(kind: str = "one_step_off", **changes: Any) -> Experiment:
    training = {"iterations": ITERATIONS, "learning_rate": 1e-2, "minibatches": 2} | changes
    method = RAW["algorithms"]["rloo"] | {"schedule": {"kind": kind}}
    return tiny(algorithms={"rloo": method}, training=training, evaluation={"every": ITERATIONS})


def run(asked: Experiment, layout: Layout) -> None:
    train(asked, layout, "rloo", 0, range(ITERATIONS), lambda *_: silent, lambda *_: None)


def files(layout: Layout) -> dict[str, bytes]:
    return {name: content for name, content in lasting_files(layout.root).items() if "segments/" not in name}


@pytest.fixture(scope="module")
def start(trained: Layout) -> Callable[[Path], Layout]:
    """Makes a directory with a start policy and nothing else."""

    def make(root: Path) -> Layout:
        for name in ("panels", "demos", "sft"):
            shutil.copytree(trained.root / name, root / name)
        return Layout(root)

    return make


@pytest.fixture(scope="module")
def online(start: Callable[[Path], Layout], tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A finished run by the online loop."""
    layout = start(tmp_path_factory.mktemp("online") / "tiny")
    run(experiment(), layout)
    return layout


@pytest.mark.parametrize(("iteration", "version"), [(0, 0), (1, 0), (2, 1)])
def test_rollouts_are_of_the_policy_before_the_last_update_and_say_so(
    online: Layout, iteration: int, version: int
) -> None:
    directory = online.stage("rloo", 0, iteration, "rollout")
    assert set(pd.read_parquet(directory / "rollouts.parquet")["policy_version"]) == {version}
    manifest = read_manifest(directory)
    assert manifest is not None
    assert manifest["identity"]["inputs"]["policy"] == sha256(online.start("rloo", 0, version) / "policy")


@pytest.mark.parametrize("iteration", range(ITERATIONS))
def test_the_ratio_is_to_the_policy_that_sampled(online: Layout, iteration: int) -> None:
    """The first optimizer step of an iteration: ratios are 1 only where its policy is the one that sampled."""
    scored = read_manifest(online.stage("rloo", 0, iteration, "score"))
    assert scored is not None
    assert 0 < scored["metrics"]["logprob_difference_max"] < 1e-4
    log = (online.stage("rloo", 0, iteration, "update") / "metrics.jsonl").read_text(encoding="utf-8")
    largest = json.loads(log.splitlines()[0])["ratio_max"]
    assert (largest > 1.01) if iteration else (largest == pytest.approx(1.0, abs=1e-4))


def test_jobs_in_another_order_write_the_same_bytes(
    start: Callable[[Path], Layout], online: Layout, tmp_path: Path
) -> None:
    """As a workflow engine may: every rollout as soon as its policy is there, before the update of its iteration."""
    layout, asked = start(tmp_path / "tiny"), experiment()
    run_of = (asked, layout, "rloo", 0)
    for iteration in (0, 1):
        rollout(*run_of, iteration)
    for iteration in range(ITERATIONS):
        score(*run_of, iteration)
        advantage(*run_of, iteration)
        update(*run_of, iteration)
        if iteration + 2 < ITERATIONS:
            rollout(*run_of, iteration + 2)
    evaluate_validation(*run_of, ITERATIONS - 1)
    assert files(layout) == files(online)


def test_an_interrupted_run_goes_on_with_what_was_sampled_ahead_and_drops_only_what_nothing_reads(
    start: Callable[[Path], Layout], online: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, asked = start(tmp_path / "tiny"), experiment(checkpoints="validated")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(asked, layout)
    kept = layout.stage("rloo", 0, 1, "rollout") / "manifest.json"
    before = kept.stat().st_mtime_ns
    run(asked, layout)
    assert kept.stat().st_mtime_ns == before
    found, expected = files(layout), files(online)
    assert {name for name in found if found[name] != expected[name]} == set()
    gone = {str(Path(name).parent) for name in expected.keys() - found.keys()}
    assert gone == {f"runs/rloo/seed0/iteration000/update/{name}" for name in ("policy", "trainer")}


def end_of_process(*_: object) -> None:
    os._exit(9)


def test_a_process_that_is_ended_while_it_samples_ahead_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a system whose memory is full; the fault is one after which the same command may be run again."""
    monkeypatch.setattr(sampling_ahead, "rollout", end_of_process)
    with sampling_ahead.ahead(experiment(), Layout(tmp_path), "rloo", 0) as rollouts:
        rollouts.begin(1)
        with pytest.raises(InfrastructureError, match=r"sampled iteration 1 ahead was ended .* stages are kept"):
            rollouts.rollout(1, silent)


def test_a_rollout_of_another_policy_than_the_schedules_is_refused(online: Layout, trained: Layout) -> None:
    """One update behind and no more, and none where the schedule is on policy."""
    with pytest.raises(AgentRLError, match=r"version 1 .* on_policy iteration 2 .* version 2 samples; run .* rollout"):
        update(experiment("on_policy"), online, "rloo", 0, 2)
    with pytest.raises(AgentRLError, match=r"version 1 .* one_step_off iteration 1 .* version 0 samples"):
        update(experiment(), trained, "rloo", 0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": {"kind": "policy_gradient"}}, "policy_gradient has no importance ratio to correct for it"),
        ({"loss": {"kind": "moved_centre"}}, "schedule.kind: reward_swap and loss.kind: moved_centre go together"),
        (
            {"topology": {"kind": "expand"}, "advantage": {"estimator": "state_score"}},
            "topology.kind: expand, schedule.kind: post_step and advantage.estimator: state_score go together",
        ),
    ],
)
def test_methods_that_it_does_not_go_with_are_refused(changes: dict[str, Any], message: str) -> None:
    method = {"base": "rloo", "schedule": {"kind": "one_step_off"}} | changes
    with pytest.raises(AgentRLError, match=message):
        load_experiment(RAW | {"algorithms": {"mine": method}})
