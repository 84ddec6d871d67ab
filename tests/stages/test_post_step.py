"""Iterations of rounds on the smallest experiment: what they publish, resume, refuse and count."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from killed_runs import differing, killed
from tiny_experiment import RAW, tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.config import Experiment, Json
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.policies.entropies import LOWER_BOUNDS
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.rollout.expand import Search
from agentbench_rl.stages import post_step
from agentbench_rl.stages.compare import training_ledger
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.post_step import iterate
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.rounds import Rounds
from agentbench_rl.types import AgentRLError, InfrastructureError, StepResult, silent

METHOD: Json = {
    "source": "3SPO",
    "topology": {"kind": "expand", "max_actions": 3, "max_responses": 12, "max_leaves": 4},
    "schedule": {"kind": "post_step"},
    "reward": {"invalid_action_penalty": 0.1},
    "advantage": {"estimator": "state_score"},
    "loss": {"kind": "token_clip", "kl_coefficient": 0.01},
}


def experiment(sections: Json | None = None, **method: Any) -> Experiment:
    """Two trees of three steps per iteration."""
    environment = RAW["environment"] | {"max_turns": 3}
    rollout = RAW["rollout"] | {"tasks_per_iteration": 2}
    changed = METHOD | {key: METHOD.get(key, {}) | value for key, value in method.items()}
    return tiny(**{"environment": environment, "rollout": rollout, "algorithms": {"3spo": changed}} | (sections or {}))


def run(layout: Layout, of: Experiment, iterations: int = 1) -> list[dict[str, Json]]:
    return [iterate(of, layout, "3spo", 0, number) for number in range(iterations)]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Panels and start policy."""
    layout = Layout(tmp_path_factory.mktemp("start") / "tiny")
    prepare_start(tiny(), layout, lambda _: silent)
    return layout.root


@pytest.fixture
def fresh(start: Path, tmp_path: Path) -> Callable[[], Layout]:
    """Makes a copy of what a run starts from."""
    return lambda: Layout(shutil.copytree(start, tmp_path / "results" / "tiny"))


@pytest.fixture(scope="module")
def done(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Two finished iterations; read only."""
    layout = Layout(shutil.copytree(start, tmp_path_factory.mktemp("done") / "tiny"))
    run(layout, experiment(), 2)
    return layout


def frames(layout: Layout, iteration: int = 0) -> dict[str, pd.DataFrame]:
    files = {"rollout": ("rollouts", "episodes"), "score": ("scores",), "advantage": ("advantages",)}
    return {
        name: pd.read_parquet(layout.stage("3spo", 0, iteration, stage) / f"{name}.parquet")
        for stage, names in files.items()
        for name in names
    }


def test_an_iteration_of_rounds_publishes_whole_trees_and_trains_every_response_once(done: Layout) -> None:
    for iteration in range(2):
        published = frames(done, iteration)
        turns, credited = published["rollouts"], published["advantages"]
        assert turns["turn_id"].is_unique
        assert turns["parent_id"].dropna().isin(turns["turn_id"]).all()
        assert len(turns) == 24
        assert len(published["episodes"]) > 2
        assert credited["turn_id"].is_unique
        assert set(credited["turn_id"]) == set(published["scores"]["turn_id"]) <= set(turns["turn_id"])
        assert (credited["advantage"].abs() > 0.1).sum() > 4
        spread = turns.groupby(["tree_id", "parent_id"], dropna=False)["expand_round"].nunique()
        assert (spread == 1).all()


def test_every_round_samples_with_the_policy_of_the_update_before_it(done: Layout) -> None:
    updates = 0
    for iteration in range(2):
        turns = frames(done, iteration)["rollouts"]
        rounds = done.round("3spo", 0, iteration, 0).parent
        for number, group in turns.groupby("expand_round"):
            sampled = read_manifest(rounds / f"{number:03d}" / "rollout")
            updated = read_manifest(rounds / f"{number:03d}" / "update")
            assert sampled is not None
            assert set(group["policy_version"]) == {updates}
            updates += updated is not None
            if updated is not None:
                assert updated["identity"]["inputs"]["policy"] == sampled["identity"]["inputs"]["policy"]
                assert updated["outputs"]["policy"] != sampled["identity"]["inputs"]["policy"]
                assert ("trainer" in updated["identity"]["inputs"]) == (updates > 1)
        manifest = read_manifest(done.stage("3spo", 0, iteration, "update"))
        assert manifest is not None
        assert manifest["counts"]["policies"] == updates
    assert updates > 4


def test_tables_count_the_cost_of_all_rounds_and_no_checkpoint_of_a_round_is_left(done: Layout) -> None:
    ledger = training_ledger(experiment(), done, "3spo", 0, 2)
    turns = pd.concat([frames(done, iteration)["rollouts"] for iteration in range(2)])
    assert ledger["sampled_tokens"] == turns["response_ids"].map(len).sum()
    lines = [
        json.loads(line)
        for iteration in range(2)
        for line in (done.stage("3spo", 0, iteration, "update") / "metrics.jsonl").read_text().splitlines()
    ]
    assert ledger["optimizer_steps"] == len(lines) > 4
    assert len({line["round"] for line in lines}) > 2
    assert not list(done.root.glob("runs/**/rounds/*/update/policy"))
    assert not list(done.root.glob("runs/**/rounds/*/update/trainer"))
    metrics = (read_manifest(done.stage("3spo", 0, 1, "rollout")) or {})["metrics"]
    assert metrics["responses_per_update"] == 24 / metrics["updates"]
    assert metrics["distinct_states"] > 1
    assert {"informative_groups", "mean_score", "expansion_depth", "allocation_3", "tokens_per_update"} <= set(metrics)


def test_trainer_and_sampler_agree_on_what_each_round_sampled(done: Layout) -> None:
    manifest = read_manifest(done.stage("3spo", 0, 1, "score"))
    assert manifest is not None
    assert 0 < manifest["metrics"]["logprob_difference_max"] < 1e-4


def test_a_second_run_does_nothing(done: Layout) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.root.rglob("*") if path.name != ".lock"}
    run(done, experiment(), 2)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(("owner", "name", "call"), [(Search, "round", 3), (post_step, "write_update", 2)])
def test_a_killed_iteration_goes_on_inside_its_trees(
    done: Layout, fresh: Callable[[], Layout], owner: object, name: str, call: int
) -> None:
    layout = fresh()
    killed(lambda: run(layout, experiment()), owner, name, call, after=owner is Search)
    kept = (layout.round("3spo", 0, 0, 0) / "rollout" / "manifest.json").stat().st_mtime_ns
    run(layout, experiment())
    assert (layout.round("3spo", 0, 0, 0) / "rollout" / "manifest.json").stat().st_mtime_ns == kept
    assert differing(layout, done) == []


def test_a_process_per_round_gives_the_bits_of_one_process(
    done: Layout, fresh: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Rounds.rollout

    def forgetful(self: Rounds, *arguments: Any) -> Json:
        self.__exit__(None, None, None)
        return original(self, *arguments)

    monkeypatch.setattr(Rounds, "rollout", forgetful)
    layout = fresh()
    run(layout, experiment())
    assert differing(layout, done) == []


def test_the_command_of_one_iteration_writes_what_the_loop_writes(
    done: Layout, fresh: Callable[[], Layout], tmp_path: Path
) -> None:
    layout = fresh()
    (tmp_path / "tiny.json").write_text(experiment().model_dump_json(), encoding="utf-8")
    (layout.root / "experiment.json").write_text(json.dumps({"name": "tiny"}), encoding="utf-8")
    where = ["--experiment", str(tmp_path / "tiny.json"), "--results", str(layout.root.parent)]
    for iteration in ("0", "1"):
        result = CliRunner().invoke(app, ["iterate", "--algorithm", "3spo", "--iteration", iteration, *where])
        assert result.exit_code == 0, result.output
    assert differing(layout, done) == differing(layout, done, "iteration001") == []
    refused = CliRunner().invoke(app, ["update", "--algorithm", "3spo", "--iteration", "1", *where])
    assert refused.exit_code == 1
    assert "agentrl iterate --algorithm 3spo --seed 0 --iteration 1" in refused.stderr
    refused = CliRunner().invoke(app, ["iterate", "--algorithm", "rloo", *where])
    assert "its schedule is on_policy" in refused.stderr


def test_the_states_of_another_run_are_refused(done: Layout, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(done.root, tmp_path / "tiny"))
    shutil.rmtree(layout.iteration("3spo", 0, 1))
    layout.iteration("3spo", 0, 0).parent.rename(layout.iteration("3spo", 1, 0).parent)
    with pytest.raises(AgentRLError, match=r"states\.parquet: states of .*\"seed\": 0.*expected .*\"seed\": 1"):
        iterate(experiment(), layout, "3spo", 1, 1)


def test_states_that_were_counted_under_other_settings_are_refused(done: Layout, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(done.root, tmp_path / "tiny"))
    shutil.rmtree(layout.iteration("3spo", 0, 1))
    with pytest.raises(AgentRLError, match=r"states\.parquet: states of .*\"settings\": .*expected "):
        iterate(experiment(topology={"score": {"scope": "global"}}), layout, "3spo", 0, 1)


def test_an_update_that_was_published_and_removed_asks_for_a_new_iteration(done: Layout, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(done.root, tmp_path / "tiny"))
    shutil.rmtree(layout.stage("3spo", 0, 1, "update"))
    with pytest.raises(AgentRLError, match=r"removed when the update was published.*; delete .*iteration001 and run"):
        iterate(experiment(), layout, "3spo", 0, 1)


def test_entropies_that_are_lower_bounds_are_told_of_rounds_and_iteration(
    fresh: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HFSampler, "entropies_are_lower_bounds", True)
    layout = fresh()
    manifests = [run(layout, experiment(schedule={"max_responses": 3}))[0]["rollout"]]
    manifests.append(read_manifest(layout.round("3spo", 0, 0, 0) / "rollout") or {})
    assert [manifest["metrics"][LOWER_BOUNDS] for manifest in manifests] == [1.0, 1.0]


def test_a_tree_that_dies_of_faults_is_counted_and_never_scored(
    done: Layout, fresh: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, original = fresh(), AlfworldEngine.step
    turns = frames(done)["rollouts"]
    faulty = turns["task_id"].iloc[0]

    def broken(self: AlfworldEngine, action: str) -> StepResult:
        if self.world.task_id == faulty and self._steps > 0:
            raise InfrastructureError("the machine is gone")
        return original(self, action)

    monkeypatch.setattr(AlfworldEngine, "step", broken)
    with pytest.raises(AgentRLError, match=r"responses ended in infrastructure faults; rollout\.max_fault_share"):
        run(layout, experiment(schedule={"max_responses": 9}))
    rollout = RAW["rollout"] | {"tasks_per_iteration": 2, "max_fault_share": 1.0}
    manifest = run(layout, experiment({"rollout": rollout}))[0]["rollout"]
    published = frames(layout)
    died = published["rollouts"][(published["rollouts"]["task_id"] == faulty) & (published["rollouts"]["step"] > 0)]
    assert manifest["counts"]["env_error"] == len(died) > 2
    assert manifest["counts"]["retried"] == len(died)
    assert died["expand_reward"].isna().all()
    credit = published["advantages"].set_index("turn_id")
    assert (credit["loss_weight"].reindex(died["turn_id"]).fillna(0.0) == 0.0).all()
    assert (credit["loss_weight"] > 0).any()
    assert published["episodes"].loc[published["episodes"]["ending"] == "env_error", "return"].isna().all()


def test_rounds_that_wait_are_trained_on_together(fresh: Callable[[], Layout]) -> None:
    layout = fresh()
    of = experiment(schedule={"update_every": 2, "minibatches": 2})
    manifests = run(layout, of)[0]
    rounds = int(manifests["rollout"]["counts"]["rounds"])
    updated = [number for number in range(rounds) if (layout.round("3spo", 0, 0, number) / "update").exists()]
    assert updated == [1, 3] == [rounds - 3, rounds - 1]
    assert manifests["update"]["ledger"]["optimizer_steps"] == 2 * len(updated)
    published = frames(layout)
    assert published["advantages"]["turn_id"].is_unique
    rounds_of = published["rollouts"].set_index("turn_id")["expand_round"]
    trained = published["advantages"].loc[published["advantages"]["loss_weight"] > 0, "turn_id"]
    assert rounds_of[trained].nunique() > len(updated)
    batch = pd.read_parquet(layout.round("3spo", 0, 0, updated[1]) / "batch" / "rollouts.parquet")
    context = batch["expand_round"] <= updated[0]
    assert context.any()
    assert (batch["expand_allocation"] == 0).equals(context)
    assert published["rollouts"]["expand_allocation"].min() == 3


def test_too_few_responses_that_teach_wait_for_more_until_the_last_round(fresh: Callable[[], Layout]) -> None:
    layout, least = fresh(), 7
    rounds = int(run(layout, experiment(schedule={"min_responses": least}))[0]["rollout"]["counts"]["rounds"])
    updated = [number for number in range(rounds) if (layout.round("3spo", 0, 0, number) / "update").exists()]
    published = frames(layout)
    credited = published["advantages"].query("loss_weight > 0 and advantage != 0")
    sampled_in = published["rollouts"].set_index("turn_id")["expand_round"][credited["turn_id"]]
    assert len(updated) > 1
    for before, number in zip([-1, *updated], updated, strict=False):
        assert ((sampled_in > before) & (sampled_in < number)).sum() < least
        assert ((sampled_in > before) & (sampled_in <= number)).sum() >= least or sampled_in.max() == number


def test_an_iteration_that_teaches_nothing_keeps_its_policy(start: Path, fresh: Callable[[], Layout]) -> None:
    layout = fresh()
    of = experiment(advantage={"min_std": 9.0}, topology={"max_responses": 3}, schedule={"max_responses": 6})
    manifests = run(layout, of, 2)
    assert [iteration["update"]["counts"] for iteration in manifests] == [{"updates": 0, "policies": 0}] * 2
    assert manifests[1]["rollout"]["counts"]["responses"] == 6
    policy = (start / "sft" / "policy" / "model.safetensors").read_bytes()
    for iteration in range(2):
        published = layout.stage("3spo", 0, iteration, "update")
        assert (published / "policy" / "model.safetensors").read_bytes() == policy
        assert frames(layout, iteration)["advantages"].empty
    assert training_ledger(of, layout, "3spo", 0, 2)["optimizer_steps"] == 0.0


def test_a_budget_of_responses_ends_an_iteration(done: Layout, fresh: Callable[[], Layout]) -> None:
    layout = fresh()
    run(layout, experiment(schedule={"max_responses": 7}))
    short, whole = frames(layout)["rollouts"], frames(done)["rollouts"]
    assert len(short) == 12
    pd.testing.assert_frame_equal(short, whole[whole["expand_round"] < 2].reset_index(drop=True))


def test_another_setting_begins_the_rounds_anew(done: Layout, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(done.root, tmp_path / "tiny"))
    first = layout.round("3spo", 0, 0, 0) / "rollout" / "manifest.json"
    before = first.stat().st_mtime_ns
    run(layout, experiment(loss={"clip_low": 0.1}, topology={"max_responses": 3}))
    assert first.stat().st_mtime_ns > before
    assert len(list(first.parents[2].iterdir())) == 2 + len(frames(layout)["rollouts"]["expand_round"].unique())
