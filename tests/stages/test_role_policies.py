"""A team whose roles have policies of their own, through all stages: sampled, scored, trained and saved by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from tiny_experiment import RAW, lasting_files, run_training, tiny

from agentbench_rl.cli.common import numbers
from agentbench_rl.config import Experiment
from agentbench_rl.policies.loading import load_policy, policy_names
from agentbench_rl.stages.evaluate import evaluate_test
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.stages.team import own_policies
from agentbench_rl.stages.update import prune_before, update
from agentbench_rl.training.checkpoint import TrainerState, load_trainer_state
from agentbench_rl.training.scoring import policy_measure, score_tokens
from agentbench_rl.types import AgentRLError, silent

#: An unskilled verifier never rejects a solution, so the reviser never acts.
ACTING, IDLE = ("solver", "verifier", "aggregator"), "reviser"


def experiment(policies: Literal["shared", "per_role"] = "per_role", **training: Any) -> Experiment:
    return tiny(
        environment={"base": "math", "max_invalid_turns": 9},
        team={"workflow": "mathematics", "orchestration": "mixed", "members": 2, "policies": policies},
        panels={name: {"split": name, "size": size} for name, size in (("train", 4), ("validation", 2), ("test", 2))},
        demos={"episodes": 4, "expert": "scripted"},
        sft={"steps": 2, "batch_tokens": 512},
        rollout=RAW["rollout"] | {"tasks_per_iteration": 2},
        training={"iterations": 2, "learning_rate": 1e-2} | training,
        algorithms={"srpo": {"base": "srpo", "topology": {"group_size": 2}, "loss": {"entropy_coefficient": 0.01}}},
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Two iterations; read only."""
    layout = Layout(tmp_path_factory.mktemp("roles") / "tiny")
    run_training(experiment(), layout, "srpo")
    return layout


@pytest.fixture
def copy(runs: Layout, tmp_path: Path) -> Layout:
    return Layout(shutil.copytree(runs.root, tmp_path / "tiny"))


def rows_of(layout: Layout, iteration: int) -> pd.DataFrame:
    return pd.read_parquet(layout.stage("srpo", 0, iteration, "rollout") / "rollouts.parquet")


def weights(layout: Layout, iteration: int, name: str) -> bytes:
    return (layout.stage("srpo", 0, iteration, "update") / "policy" / name / "model.safetensors").read_bytes()


def state_of(layout: Layout, iteration: int, name: str) -> TrainerState:
    return load_trainer_state(layout.stage("srpo", 0, iteration, "update") / "trainer" / name)


def test_roles_that_start_from_one_policy_play_as_if_they_shared_it(runs: Layout, tmp_path: Path) -> None:
    shared = Layout(tmp_path / "tiny")
    for name in ("panels", "demos", "sft"):
        shutil.copytree(runs.root / name, shared.root / name)
    prepare_start(experiment("shared"), shared, lambda _: silent)
    rollout(experiment("shared"), shared, "srpo", 0, 0)
    own, together = rows_of(runs, 0), rows_of(shared, 0)
    assert set(own["policy"]) == set(ACTING)
    assert set(together["policy"]) == {"policy"}
    pd.testing.assert_frame_equal(own.drop(columns="policy"), together.drop(columns="policy"))


def test_every_role_goes_on_with_weights_and_optimizer_of_its_own(runs: Layout) -> None:
    start = (runs.sft / "policy" / "model.safetensors").read_bytes()
    for iteration in range(2):
        directory = runs.stage("srpo", 0, iteration, "update") / "policy"
        assert policy_names(directory) == tuple(sorted(own_policies(experiment())))
        assert len({weights(runs, iteration, name) for name in ACTING} | {start}) == 4
        assert [state_of(runs, iteration, name).steps for name in ACTING] == [iteration + 1] * 3
    assert all(weights(runs, 0, name) != weights(runs, 1, name) for name in ACTING)


def test_what_is_tracked_tells_sets_ratios_and_clips_and_every_role_s_gradient(runs: Layout) -> None:
    stages = ("rollout", "advantage", "update")
    found = [(name, read_manifest(runs.stage("srpo", 0, 1, name))) for name in stages]
    tracked = {name for stage, told in found if told is not None for name in numbers(stage, told)}
    assert tracked >= {
        *(f"update/{name}" for name in ("log_ratio_abs_mean", "ratio_mean", "set_size", "clip_share")),
        *(f"update/clip_share_k{size}" for size in (1, 2)),
        *("rollout/set_size", "advantage/set_size", "advantage/dropped_events", "advantage/advantage_std/propose"),
        *(f"update/{name}_gradient_norm" for name in ACTING),
    }


def test_a_role_without_rows_stays_as_it_is(runs: Layout) -> None:
    start = (runs.sft / "policy" / "model.safetensors").read_bytes()
    assert [weights(runs, iteration, IDLE) for iteration in range(2)] == [start, start]
    assert [state_of(runs, iteration, IDLE) for iteration in range(2)] == [TrainerState(), TrainerState()]


def test_every_role_samples_with_the_policy_that_its_update_wrote(runs: Layout) -> None:
    rows = rows_of(runs, 1)
    assert set(rows["policy_version"]) == {1}
    metrics = read_manifest(runs.stage("srpo", 0, 1, "score"))["metrics"]
    assert metrics["logprob_difference_max"] < 1e-4
    model = load_policy(runs.stage("srpo", 0, 0, "update") / "policy" / "solver")
    scored = score_tokens(model, policy_measure(model), rows, 1024)["logprobs"]
    for name, own in rows.groupby("policy"):
        sampled = zip(own["turn_id"], own["response_logprobs"], strict=True)
        difference = max(float(np.abs(scored[turn] - logprobs).max()) for turn, logprobs in sampled)
        assert (difference < 1e-4) == (name == "solver")


def test_an_update_that_is_made_again_gives_the_same_bytes(runs: Layout, copy: Layout) -> None:
    for stage in ("update", "validation"):
        shutil.rmtree(copy.stage("srpo", 0, 1, stage))
    update(experiment(), copy, "srpo", 0, 1)
    run_training(experiment(), copy, "srpo")
    assert lasting_files(copy.root) == lasting_files(runs.root)


def test_a_checkpoint_is_pruned_with_all_of_its_policies_and_its_stages_are_kept(copy: Layout) -> None:
    pruned = experiment(checkpoints="validated")
    prune_before(pruned, copy, "srpo", 0, 1)
    update_0, update_1 = (copy.stage("srpo", 0, iteration, "update") for iteration in range(2))
    assert not (update_0 / "policy").exists()
    assert not (update_0 / "trainer").exists()
    assert set(policy_names(update_1 / "policy")) == {*ACTING, IDLE}
    finished = [read_manifest(one)["finished"] for one in (update_0, update_1)]
    run_training(pruned, copy, "srpo")
    assert [read_manifest(one)["finished"] for one in (update_0, update_1)] == finished


def test_a_team_is_evaluated_with_all_of_its_policies(copy: Layout) -> None:
    evaluate_test(experiment(), copy, "srpo", 0)
    rows = pd.read_parquet(copy.test("srpo", 0) / "rollouts.parquet")
    assert (set(rows["policy"]), set(rows["policy_version"])) == (set(ACTING), {2})


def test_a_damaged_policy_or_state_of_one_role_is_named(copy: Layout) -> None:
    before = copy.stage("srpo", 0, 0, "update")
    shutil.rmtree(before / "trainer" / "verifier")
    with pytest.raises(AgentRLError, match=r"trainer/verifier is missing or damaged"):
        update(experiment(), copy, "srpo", 0, 1)
    shutil.rmtree(before / "policy" / "verifier")
    with pytest.raises(AgentRLError, match="none for 'verifier'"):
        rollout(experiment(), copy, "srpo", 0, 1)


def test_several_policies_where_all_roles_share_one_are_an_error(copy: Layout) -> None:
    with pytest.raises(AgentRLError, match=r"holds the policies of a team .* where one policy is expected"):
        rollout(experiment("shared"), copy, "srpo", 0, 1)
