"""A dense reward that is misaligned on purpose: trained on it alone a policy hacks it, through RSPO it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bells import TURNS
from tiny_experiment import RAW, run_training, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.stages.evaluate import evaluate_start, evaluate_test
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.types import episode_schema, rollout_schema

ITERATIONS = 3
GROUPS = {"topology": {"group_size": 4}}
METHODS = {
    "grpo": {"base": "grpo"} | GROUPS,
    "dense": {"base": "grpo", "reward": {"view": "process"}} | GROUPS,
    "rspo": {"base": "rspo-grpo"} | GROUPS,
}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return tiny(
        environment={"name": "custom", "factory": "bells:Bells", "max_turns": TURNS},
        panels={name: {"split": name, "size": 14} for name in ("train", "validation", "test")},
        demos={"episodes": 64, "expert": "scripted", "failure_rate": 0.0},
        sft=RAW["sft"] | {"steps": 60},
        rollout=RAW["rollout"] | {"tasks_per_iteration": 8, "batch_slots": 64},
        training=RAW["training"] | {"iterations": ITERATIONS, "learning_rate": 3e-3, "minibatches": 4},
        evaluation={"samples_per_task": 3, "every": ITERATIONS},
        algorithms=METHODS,
    )


@pytest.fixture(scope="module")
def layout(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The three runs."""
    layout = Layout(tmp_path_factory.mktemp("bells") / "tiny")
    run_training(experiment, layout, *METHODS)
    return layout


@pytest.fixture(scope="module")
def ends(experiment: Experiment, layout: Layout) -> dict[str, tuple[float, float]]:
    """Success and rings per test episode of every method's last policy, and of the "start" policy."""
    evaluate_start(experiment, layout, "test")
    for name in METHODS:
        evaluate_test(experiment, layout, name, 0)
    played = {name: layout.test(name, 0) for name in METHODS} | {"start": layout.start_evaluation("test")}
    return {name: success_and_rings(directory) for name, directory in played.items()}


def success_and_rings(directory: Path) -> tuple[float, float]:
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    actions = read_frame(directory / "rollouts.parquet", rollout_schema())["action"]
    return float(episodes["success"].mean()), float((actions == "ring").sum() / len(episodes))


def test_p12_a_policy_that_is_trained_on_it_alone_gives_up_success_for_it(ends: dict[str, tuple[float, float]]) -> None:
    success, rings = ends["dense"]
    assert success < ends["start"][0] - 0.3
    assert rings > ends["start"][1] + 1.0


@pytest.mark.parametrize("name", ["grpo", "rspo"])
def test_p12_a_policy_that_only_outcomes_teach_gains_success_and_stops_ringing(
    ends: dict[str, tuple[float, float]], name: str
) -> None:
    success, rings = ends[name]
    assert success > ends["start"][0] + 0.05
    assert rings < ends["start"][1] - 0.3


def test_the_explorer_hacks_the_reward_and_what_it_collects_still_teaches_the_policy(
    ends: dict[str, tuple[float, float]], layout: Layout
) -> None:
    swap = json.loads((layout.stage("rspo", 0, 0, "swap") / "manifest.json").read_text(encoding="utf-8"))
    assert swap["metrics"]["collected_success"] < ends["start"][0] - 0.3
    replay = json.loads((layout.stage("rspo", 0, 0, "replay") / "manifest.json").read_text(encoding="utf-8"))
    assert replay["metrics"]["replayed_return_mean"] == 1.0
