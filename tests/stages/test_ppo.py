"""PPO through the stages: the critic is scored, trained, saved, resumed and pruned with the policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_experiment import lasting_files, run_training, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.policies.critic import load_critic
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.score import score
from agentbench_rl.stages.update import update
from agentbench_rl.training.scoring import policy_measure, score_tokens, value_measure
from agentbench_rl.types import TRUNCATED_ENDINGS, AgentRLError

#: The penalty gives even an unskilled policy rewards that differ, and so the critic something to learn.
COMMON = {"topology": {"group_size": 2}, "reward": {"invalid_action_penalty": 0.5}}
CRITIC = {"backbone": "separate", "learning_rate": 1e-2}
METHODS: dict[str, dict[str, Any]] = {
    "row": {"base": "ppo", "advantage": {"granularity": "row"}, "critic": CRITIC},
    "token": {"base": "ppo", "critic": CRITIC, "advantage": {"truncation": "bootstrap"}},
    "turn": {"base": "ppo-turn", "critic": CRITIC},
    "bi_level": {"base": "ppo-bilevel", "critic": CRITIC},
    "shared": {
        "base": "ppo",
        "critic": {"backbone": "shared", "learning_rate": 1e-2},
        "advantage": {"truncation": "bootstrap"},
        "old_logprobs": "sampler",
        "loss": {"kl_coefficient": 0.0},
    },
}


def experiment(**training: Any) -> Experiment:
    return tiny(
        algorithms={name: COMMON | method for name, method in METHODS.items()},
        training={"iterations": 3, "learning_rate": 1e-3, "minibatches": 2} | training,
    )


def begun(trained: Layout, root: Path) -> Layout:
    """A layout that has the start policy of `trained`."""
    for name in ("panels", "demos", "sft"):
        shutil.copytree(trained.root / name, root / name)
    return Layout(root)


@pytest.fixture(scope="module")
def runs(trained: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Three iterations of every method; read only."""
    layout = begun(trained, tmp_path_factory.mktemp("ppo") / "tiny")
    run_training(experiment(), layout, *METHODS)
    return layout


def columns(layout: Layout, method: str, iteration: int) -> pd.DataFrame:
    return pd.read_parquet(layout.stage(method, 0, iteration, "score") / "scores.parquet")


@pytest.mark.parametrize("method", METHODS)
def test_three_iterations_are_finite_and_train_policy_and_critic(runs: Layout, method: str) -> None:
    for iteration in range(3):
        for stage in ("score", "advantage", "update"):
            metrics = read_manifest(runs.stage(method, 0, iteration, stage))["metrics"]
            assert all(np.isfinite(value) for value in metrics.values())
        assert metrics["critic_optimizer_steps"] == metrics["optimizer_steps"] == 1.0
        assert {"value_loss", "value_clip", "explained_variance", "critic_gradient_norm"} <= set(metrics)
        credited = pd.read_parquet(runs.stage(method, 0, iteration, "advantage") / "advantages.parquet")
        assert np.isfinite(np.concatenate(credited["value_targets"].tolist())).all()
    for name in ("critic/critic.safetensors", "policy/model.safetensors"):
        files = [runs.stage(method, 0, iteration, "update") / name for iteration in range(3)]
        assert len({file.read_bytes() for file in files}) == 3


@pytest.mark.parametrize("method", METHODS)
def test_scores_hold_exactly_what_the_method_asks_for(runs: Layout, method: str) -> None:
    wanted = set(experiment().algorithms[method].score_columns)
    frame = columns(runs, method, 1)
    assert {name for name in frame if name != "turn_id" and frame[name].notna().any()} == wanted
    manifest = read_manifest(runs.stage(method, 0, 1, "score"))
    assert ("logprob_difference_max" in manifest["metrics"]) == ("old_logprobs" in wanted)
    assert manifest["ledger"]["processed_tokens"] > 0


def test_values_start_at_0(runs: Layout) -> None:
    assert not np.concatenate(columns(runs, "row", 0)["values"].tolist()).any()
    assert np.concatenate(columns(runs, "row", 1)["values"].tolist()).any()


@pytest.mark.parametrize("method", ["token", "shared"])
def test_the_final_value_is_that_of_the_state_a_cut_episode_stopped_in(runs: Layout, method: str) -> None:
    frame = columns(runs, method, 2).set_index("turn_id")
    rollout = runs.stage(method, 0, 2, "rollout")
    episodes = pd.read_parquet(rollout / "episodes.parquet")
    leaves = set(episodes.loc[episodes["ending"].isin([str(ending) for ending in TRUNCATED_ENDINGS]), "leaf_turn_id"])
    assert leaves
    assert set(frame.index[frame["final_value"].notna()]) == leaves
    start = runs.stage(method, 0, 1, "update")
    model = load_policy(start / "policy")
    critic = load_critic(start / "critic", model, "shared" if method == "shared" else "separate")
    measure = policy_measure(model, critic) if method == "shared" else value_measure(critic)
    rollouts = pd.read_parquet(rollout / "rollouts.parquet")
    scored = score_tokens(critic if method == "token" else model, measure, rollouts, 1024)
    for turn, row in frame.iterrows():
        np.testing.assert_allclose(row["values"], scored["values"][turn], atol=1e-5)
        if turn in leaves:
            assert row["final_value"] == pytest.approx(scored["next_values"][turn][-1], abs=1e-5)


@pytest.mark.parametrize("method", ["token", "shared"])
def test_a_run_that_lost_its_last_iterations_ends_with_the_same_bytes(
    runs: Layout, method: str, tmp_path: Path
) -> None:
    layout = Layout(shutil.copytree(runs.root, tmp_path / "tiny"))
    for gone in (layout.stage(method, 0, 1, "update"), layout.iteration(method, 0, 2)):
        shutil.rmtree(gone)
    run_training(experiment(), layout, method)
    expected = lasting_files(runs.root)
    assert {name for name, content in lasting_files(layout.root).items() if expected[name] != content} == set()


def test_pruning_removes_critics_that_nothing_reads_again_and_changes_no_result(
    trained: Layout, runs: Layout, tmp_path: Path
) -> None:
    pruned = begun(trained, tmp_path / "tiny")
    settings = experiment(checkpoints="validated")
    run_training(settings, pruned, "token")
    updates = [pruned.stage("token", 0, iteration, "update") for iteration in range(3)]
    kept = {name: [(update / name).exists() for update in updates] for name in ("policy", "critic", "critic_trainer")}
    assert kept == {
        "policy": [False, True, True],
        "critic": [False, False, True],
        "critic_trainer": [False, False, True],
    }
    for name in ("critic/critic.safetensors", "critic_trainer/optimizer.safetensors", "policy/model.safetensors"):
        assert (updates[2] / name).read_bytes() == (runs.stage("token", 0, 2, "update") / name).read_bytes()
    finished = [read_manifest(one)["finished"] for one in updates]
    run_training(settings, pruned, "token")
    assert [read_manifest(one)["finished"] for one in updates] == finished


@pytest.mark.parametrize("file", ["critic/critic.safetensors", "critic_trainer/optimizer.safetensors"])
def test_a_truncated_file_of_the_critic_is_an_error(runs: Layout, tmp_path: Path, file: str) -> None:
    layout = Layout(shutil.copytree(runs.root, tmp_path / "tiny"))
    path = layout.stage("row", 0, 1, "update") / file
    path.write_bytes(path.read_bytes()[:-100])
    stage = score if file.startswith("critic/") else update
    with pytest.raises(AgentRLError, match="missing or damaged"):
        stage(experiment(), layout, "row", 0, 2)


def test_the_metrics_of_every_optimizer_step_tell_of_the_critic(runs: Layout) -> None:
    lines = (runs.stage("turn", 0, 2, "update") / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["critic_skipped_steps"] for line in lines] == [0.0, 0.0]
