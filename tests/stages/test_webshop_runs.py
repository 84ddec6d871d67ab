"""WebShop through all stages: a generated shop."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tiny_experiment import RAW, run_everything, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.panel import panel_inputs

ENVIRONMENT: Json = {
    "base": "webshop",
    "max_turns": 6,
    "page_size": 2,
    "generator": {"products": 40, "kinds": 4, "attributes": [1, 2]},
}


def experiment(**changes: object) -> Experiment:
    sections: Json = {
        "environment": ENVIRONMENT,
        "panels": {
            name: {"split": name, "size": size} for name, size in (("train", 8), ("validation", 2), ("test", 3))
        },
        "demos": {"episodes": 8, "expert": "scripted"},
        "sft": RAW["sft"] | {"steps": 4},
        "rollout": RAW["rollout"] | {"max_context_tokens": 1024},
        "training": RAW["training"] | {"iterations": 3},
        "algorithms": {"grpo": RAW["algorithms"]["grpo"]},
    }
    return tiny(**(sections | changes))


def test_a_generated_shop_runs_through_all_stages(tmp_path: Path) -> None:
    layout = run_everything(experiment(), tmp_path / "run")
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    assert demos.groupby("episode_id")["action"].first().str.startswith("search[").all()
    assert demos.groupby("episode_id")["action"].last().eq("click[buy now]").all()
    inputs = panel_inputs(layout.panels, "train")
    assert {name for name in inputs if "games" in name} == {"games/games_train.jsonl", "games/products.jsonl.gz"}
