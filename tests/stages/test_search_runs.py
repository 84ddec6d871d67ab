"""Search through all stages: generated worlds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tiny_experiment import RAW, run_everything, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.panel import panel_inputs

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
