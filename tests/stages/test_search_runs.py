"""Search through all stages: generated worlds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import RAW, run_everything, run_training, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import panel_inputs
from agentbench_rl.types import AgentRLError
from tests.envs.search_data import QUESTION, write_data

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


def test_questions_without_gold_passages_have_no_dense_reward_and_the_error_names_the_learned_one(
    tmp_path: Path,
) -> None:
    questions = [QUESTION | {"qid": f"q{n}", "question": f"Question {n}?", "gold": []} for n in range(80)]
    config = experiment(
        environment=ENVIRONMENT | {"data": str(write_data(tmp_path / "data", questions))},
        demos={"episodes": 2, "expert": "oracle", "failure_rate": 0.0},
        sft={"steps": 2, "batch_tokens": 256},
        rollout=SECTIONS["rollout"] | {"tasks_per_iteration": 2},
        algorithms={"rspo": {"base": "rspo-grpo", "topology": {"group_size": 4}, "schedule": {"buffer_tasks": 2}}},
    )
    with pytest.raises(
        AgentRLError, match=r"process_reward of turn .* is null .* schedule\.dense_reward: model learns"
    ):
        run_training(config, Layout(tmp_path / "run"), "rspo")
