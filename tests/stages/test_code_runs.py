"""Code repair through all stages: faults, demonstrations, a start policy, updates, evaluation."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tiny_experiment import RAW, run_everything, tiny

from agentbench_rl.config import Json
from agentbench_rl.stages.panel import panel_inputs

ENVIRONMENT: Json = {"base": "code", "isolation": "none", "max_turns": 5}
PANELS: Json = {"train": 4, "validation": 2, "test": 2}


def test_faults_run_through_all_stages(tmp_path: Path) -> None:
    experiment = tiny(
        environment=ENVIRONMENT,
        panels={name: {"split": name, "size": size} for name, size in PANELS.items()},
        demos={"episodes": 4, "expert": "scripted", "failure_rate": 0.0},
        algorithms={"grpo": RAW["algorithms"]["grpo"]},
        rollout=RAW["rollout"] | {"max_context_tokens": 2048, "tasks_per_iteration": 2},
        training=RAW["training"] | {"iterations": 3},
        sft=RAW["sft"] | {"batch_tokens": 4096},
    )
    layout = run_everything(experiment, tmp_path / "run")
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    actions = demos.groupby("episode_id")["action"].apply(lambda texts: [text.split()[0] for text in texts])
    assert set(map(tuple, actions)) == {("search", "read", "edit", "test", "submit")}
    assert {"games/projects.json", "games/games_train.jsonl"} <= set(panel_inputs(layout.panels, "train"))
