"""The experiments on real data, by the settings that the documentation names, cut to sizes of a test."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import run_everything

from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.panel import panel, panel_inputs

SIZES = (
    *("panels.train.size=8", "panels.validation.size=2", "panels.test.size=3", "demos.episodes=8", "sft.steps=2"),
    *("rollout.tasks_per_iteration=2", "rollout.batch_slots=8", "training.iterations=1", "iterations_per_job=1"),
    *("evaluation.every=1", "evaluation.resamples=50", "tracking.enabled=false"),
    "algorithms.grpo.topology.group_size=2",
)


@pytest.mark.parametrize(
    ("name", "data", "settings"),
    [
        ("math", "math", []),
        ("math", "math", ["environment.benchmark=math500"]),
        ("search-data", "search", []),
        ("webshop-data", "webshop", []),
    ],
    ids=["gsm8k", "math500", "questions", "products"],
)
def test_real_data_run_through_all_stages(
    data_dir: Path, tmp_path: Path, name: str, data: str, settings: list[str]
) -> None:
    experiment = load_experiment(name, [f"environment.data={data_dir / data}", *settings, *SIZES])
    layout = run_everything(experiment, tmp_path / "run")
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    assert demos["episode_id"].nunique() == 8
    if data == "search":
        assert {"games/passages.jsonl.gz", "games/index"} <= set(panel_inputs(layout.panels, "train"))
    episodes = pd.read_parquet(layout.start_evaluation("test") / "episodes.parquet")
    assert len(episodes) == 3 * experiment.evaluation.samples_per_task
    assert episodes["success"].notna().all()


@pytest.mark.parametrize(
    ("name", "data", "settings"),
    [
        ("math", "math", []),
        ("math", "math", ["environment.benchmark=math500", "panels.train.size=all", "panels.test.size=all"]),
        ("search-data", "search", []),
        ("webshop-data", "webshop", []),
    ],
    ids=["gsm8k", "math500", "questions", "products"],
)
def test_the_panels_of_the_experiments_fit_the_data(
    data_dir: Path, tmp_path: Path, name: str, data: str, settings: list[str]
) -> None:
    experiment = load_experiment(name, [f"environment.data={data_dir / data}", *settings])
    counts = panel(experiment, tmp_path / "panels")["counts"]
    for name in ("train", "validation", "test"):
        assert getattr(experiment.panels, name).size in (counts[name], "all")
