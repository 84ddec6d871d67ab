"""The stages of a method with a critic in two processes: scores, and then updates, are those of one process."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tiny_experiment import RAW, run_training, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.score import score
from agentbench_rl.stages.update import update
from agentbench_rl.training.world import World, follow
from tests.training.ranks import in_processes

_PPO: Json = {
    "base": "ppo",
    "topology": {"group_size": 2},
    "advantage": {"truncation": "bootstrap"},
    "reward": {"invalid_action_penalty": 0.5},
}
_RATE = {"learning_rate": 1e-2}
#: Every column of scores, with the critic's values from states of its own and from the policy's.
METHODS = {
    "separate": _PPO | {"critic": {"backbone": "separate"} | _RATE, "loss": {"kl_coefficient": 0.1}},
    "shared": _PPO | {"critic": {"backbone": "shared"} | _RATE, "modifiers": [{"kind": "entropy_scale"}]},
}
LAST = 1


def experiment() -> Experiment:
    return tiny(
        algorithms=METHODS,
        rollout=RAW["rollout"] | {"tasks_per_iteration": 2},
        training={"iterations": 2, "learning_rate": 1e-3, "micro_batch_tokens": 512},
    )


@pytest.fixture(scope="module")
def alone(trained: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Two iterations of every method in one process; read only."""
    layout = Layout(tmp_path_factory.mktemp("alone") / "tiny")
    for name in ("panels", "demos", "sft"):
        shutil.copytree(trained.root / name, layout.root / name)
    run_training(experiment(), layout, *METHODS)
    return layout


def score_and_update(world: World, layout: Layout) -> None:
    """What torchrun's processes do of `agentrl score` and `agentrl update` of every method."""
    if not world.leads:
        follow()
        return
    for method in METHODS:
        for stage in (score, update):
            stage(experiment(), layout, method, 0, LAST)


@pytest.fixture(scope="module")
def both(alone: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The same of which two processes made the last scores and update."""
    layout = Layout(shutil.copytree(alone.root, tmp_path_factory.mktemp("both") / "tiny"))
    for method in METHODS:
        for stage in ("score", "update"):
            shutil.rmtree(layout.stage(method, 0, LAST, stage))
    in_processes(2, score_and_update, layout)
    return layout


def scores(layout: Layout, method: str) -> pd.DataFrame:
    return pd.read_parquet(layout.stage(method, 0, LAST, "score") / "scores.parquet")


def manifest(layout: Layout, method: str, stage: str) -> dict[str, dict[str, float]]:
    found = read_manifest(layout.stage(method, 0, LAST, stage))
    assert found is not None
    return found


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_score_the_rows_of_one_in_its_order(alone: Layout, both: Layout, method: str) -> None:
    found, expected = scores(both, method), scores(alone, method)
    assert list(found) == list(expected)
    assert found["turn_id"].tolist() == expected["turn_id"].tolist()
    measured = {name for name in expected if name != "turn_id" and expected[name].notna().any()}
    assert measured == set(experiment().algorithms[method].score_columns)
    for name in measured - {"final_value"}:
        ours, theirs = (np.concatenate(frame[name].tolist()) for frame in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    ours, theirs = (frame["final_value"].to_numpy(dtype=float) for frame in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert manifest(both, method, "score")["processes"] == 2
    assert manifest(both, method, "score")["identity"] == manifest(alone, method, "score")["identity"]


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_train_the_critic_of_one(alone: Layout, both: Layout, method: str) -> None:
    start = alone.stage(method, 0, LAST - 1, "update")
    for name in ("policy/model.safetensors", "critic/critic.safetensors"):
        before = load_file(start / name)
        ours, theirs = (
            torch.cat([(of[key] - before[key]).flatten() for key in before])
            for of in (load_file(layout.stage(method, 0, LAST, "update") / name) for layout in (both, alone))
        )
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-3, name
    found, expected = (manifest(layout, method, "update")["metrics"] for layout in (both, alone))
    for name in ("loss", "value_loss", "gradient_norm", "critic_gradient_norm", "explained_variance"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)
