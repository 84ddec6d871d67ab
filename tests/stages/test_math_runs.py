"""Mathematics through all stages: generated sums in one turn and with the calculator, benchmarks by one setting."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import RAW, run_everything, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import load_panel, panel_inputs
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.types import silent

SECTIONS: Json = {
    "panels": {name: {"split": name, "size": size} for name, size in (("train", 8), ("validation", 2), ("test", 3))},
    "demos": {"episodes": 8, "expert": "scripted", "failure_rate": 0.0},
    "algorithms": {"grpo": RAW["algorithms"]["grpo"]},
    "training": RAW["training"] | {"iterations": 3},
}


def experiment(environment: Json) -> Experiment:
    return tiny(**SECTIONS | {"environment": environment})


@pytest.mark.parametrize("preset", ["math", "math-calculator"])
def test_generated_sums_run_through_all_stages(tmp_path: Path, preset: str) -> None:
    layout = run_everything(experiment({"base": preset}), tmp_path / "run")
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    assert (demos["step"].max() > 0) == (preset == "math-calculator")
    assert {name for name in panel_inputs(layout.panels, "train") if "games" in name} == {"games/games_train.jsonl"}
    episodes = pd.read_parquet(layout.start_evaluation("test") / "episodes.parquet")
    assert episodes["success"].notna().all()


@pytest.mark.parametrize("benchmark", ["gsm8k", "math500"])
def test_a_benchmark_runs_with_one_setting_changed(data_dir: Path, tmp_path: Path, benchmark: str) -> None:
    config = experiment({"base": "math", "data": str(data_dir / "math"), "benchmark": benchmark})
    layout = Layout(tmp_path / "run")
    prepare_start(config, layout, lambda _: silent)
    assert all(task.task_type.startswith(benchmark) for task in load_panel(layout.panels, "test"))
    assert pd.read_parquet(layout.demos / "demos.parquet")["episode_id"].nunique() == 8
