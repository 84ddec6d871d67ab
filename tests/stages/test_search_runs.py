"""Search through all stages: generated worlds, and the real questions with one setting changed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tiny_experiment import RAW, run_everything, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import panel_inputs
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.types import silent

ENVIRONMENT: Json = {"base": "search", "max_turns": 3, "generator": {"entities": 40, "hops": [1, 2]}}
SECTIONS: Json = {
    "panels": {name: {"split": name, "size": size} for name, size in (("train", 8), ("validation", 2), ("test", 3))},
    "rollout": RAW["rollout"] | {"max_context_tokens": 768},
}


def experiment(**changes: object) -> Experiment:
    demos = {"episodes": 8, "expert": "scripted", "failure_rate": 0.0}
    algorithms = {"grpo": RAW["algorithms"]["grpo"]}
    return tiny(
        **(
            SECTIONS
            | {
                "environment": ENVIRONMENT,
                "demos": demos,
                "algorithms": algorithms,
                "training": RAW["training"] | {"iterations": 3},
            }
            | changes
        )
    )


def test_generated_worlds_run_through_all_stages(tmp_path: Path) -> None:
    layout = run_everything(experiment(), tmp_path / "run")
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    assert demos.groupby("episode_id").size().max() == 3
    assert demos["observation"].str.startswith("<information>Doc 1(Title: ").any()
    inputs = panel_inputs(layout.panels, "train")
    assert {name for name in inputs if "games" in name} == {
        "games/games_train.questions.jsonl",
        "games/games_train.passages.jsonl.gz",
        "games/games_train.index",
    }


def test_the_real_questions_run_with_one_setting_changed(data_dir: Path, tmp_path: Path) -> None:
    real = ENVIRONMENT | {"data": str(data_dir / "search"), "passage_characters": 60, "top_k": 1, "max_turns": 6}
    config = experiment(environment=real, demos={"episodes": 4, "expert": "oracle", "failure_rate": 0.0})
    layout = Layout(tmp_path / "run")
    prepare_start(config, layout, lambda _: silent)
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    assert demos["episode_id"].nunique() == 4
    assert {"games/passages.jsonl.gz", "games/index"} <= set(panel_inputs(layout.panels, "train"))
