"""The real ALFWorld games run through the same stages with one setting changed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import RAW

from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.evaluate import evaluate_start
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.train import train
from agentbench_rl.types import silent


@pytest.fixture(scope="module")
def real(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The tiny experiment on the real games: start policy, one trained iteration, both evaluations."""
    changes = [f"environment.data={data_dir / 'alfworld'}", "training.iterations=1", "rollout.max_context_tokens=1536"]
    bpo = {"base": "bpo", "topology": {"points": 1, "spacing": 0}, "reward": {"invalid_action_penalty": 0.1}}
    experiment = load_experiment(RAW | {"algorithms": RAW["algorithms"] | {"bpo": bpo}}, changes)
    layout = Layout(tmp_path_factory.mktemp("real") / "tiny")
    prepare_start(experiment, layout, lambda _: silent)
    for algorithm in ("grpo", "bpo"):
        train(experiment, layout, algorithm, 0, range(1), lambda *_: silent, lambda *_: None)
    for panel in ("validation", "test"):
        evaluate_start(experiment, layout, panel)
    return layout


SPLITS = [("train", "train"), ("validation", "valid_seen"), ("test", "valid_unseen")]


@pytest.mark.parametrize(("panel", "split"), SPLITS)
def test_panels_hold_real_games_of_their_split(real: Layout, panel: str, split: str) -> None:
    tasks = load_panel(real.panels, panel)
    assert {task.split for task in tasks} == {split}
    assert all("/trial_T" in task.task_id for task in tasks)


@pytest.mark.parametrize("panel", ["validation", "test"])
def test_every_task_of_a_real_panel_is_played_once(real: Layout, panel: str) -> None:
    episodes = pd.read_parquet(real.start_evaluation(panel) / "episodes.parquet")
    assert sorted(episodes["task_id"]) == [task.task_id for task in load_panel(real.panels, panel)]
    assert episodes["success"].notna().all()


def test_experts_demonstrate_real_games_without_hidden_information(real: Layout) -> None:
    demos = pd.read_parquet(real.demos / "demos.parquet")
    assert demos["episode_id"].nunique() == 8
    assert demos.loc[demos["step"] == 0, "observation"].str.contains("Your task is to: ").all()


@pytest.mark.parametrize("algorithm", ["grpo", "bpo"])
def test_training_on_real_games_writes_the_next_policy(real: Layout, algorithm: str) -> None:
    assert (real.stage(algorithm, 0, 0, "update") / "policy" / "model.safetensors").exists()


def test_trees_of_real_games_have_four_returns_and_leave_no_snapshot(real: Layout) -> None:
    directory = real.stage("bpo", 0, 0, "rollout")
    episodes = pd.read_parquet(directory / "episodes.parquet")
    assert set(episodes.groupby("tree_id").size()) == {4}
    manifest = read_manifest(directory)
    assert manifest is not None
    assert manifest["metrics"]["snapshots_left"] == 0.0
    assert manifest["ledger"]["forks"] == len(episodes) * 3 / 4
