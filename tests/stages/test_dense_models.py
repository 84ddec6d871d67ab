"""RSPO with a learned dense reward: its stage, who is paid by it, and who never sees it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from killed_runs import differing, killed
from safetensors.torch import load_file, save_file
from tiny_experiment import RAW, lasting_files, manifest, read, tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.config import Experiment, Json
from agentbench_rl.policies.dense_model import TENSORS, load_dense_model
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.stages import dense_model as stage_module
from agentbench_rl.stages import explore
from agentbench_rl.stages.compare import training_ledger
from agentbench_rl.stages.dense_model import dense_model, labelled, open_model
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.train import train
from agentbench_rl.training.dense_model import dense_scores, turn_sequences
from agentbench_rl.training.world import World, follow
from agentbench_rl.types import AgentRLError, silent
from tests.training.ranks import in_processes

METHOD: Json = {
    "source": "RSPO",
    "topology": {"group_size": 2},
    "schedule": {"kind": "reward_swap", "period": 2, "share": 0.5, "buffer_tasks": 4, "dense_reward": "model"},
    "advantage": {"estimator": "group_mean"},
    "loss": {"kind": "moved_centre"},
}
#: Sums: after so few steps of cloning, some of the start policy's answers are right and some are wrong.
SECTIONS: Json = {
    "environment": "math",
    "panels": {name: {"split": name, "size": size} for name, size in (("train", 8), ("validation", 2), ("test", 2))},
    "demos": {"episodes": 24, "expert": "scripted", "failure_rate": 0.0},
    "sft": {"steps": 45, "batch_tokens": 2048, "learning_rate": 1e-2, "warmup_steps": 10},
    "dense_model": {"episodes": 20, "steps": 12, "batch_episodes": 8, "mlp_size": 16, "learning_rate": 3e-3},
    "training": RAW["training"] | {"iterations": 3, "checkpoints": "all"},
    "algorithms": {"rspo": METHOD},
}


def experiment(**sections: Any) -> Experiment:
    return tiny(**SECTIONS | sections)


def run(layout: Layout, of: Experiment, iterations: int = 3, first: int = 0) -> None:
    train(of, layout, "rspo", 0, range(first, iterations), lambda *_: silent, lambda *_: None)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A loop and the first iteration of another, taught by a model; read only."""
    layout = Layout(tmp_path_factory.mktemp("done") / "tiny")
    prepare_start(experiment(), layout, lambda _: silent)
    run(layout, experiment())
    return layout


@pytest.fixture
def fresh(done: Layout, tmp_path: Path) -> Layout:
    """A copy of what the run started from."""
    layout = Layout(Path(shutil.copytree(done.root, tmp_path / "results" / "tiny")))
    shutil.rmtree(layout.root / "runs")
    return layout


def test_the_stage_tells_how_well_the_model_predicts_outcomes_of_tasks_that_it_was_not_trained_on(done: Layout) -> None:
    told = manifest(done.dense_model)
    assert set(told["outputs"]) == {"model", "metrics.jsonl"}
    assert {"loss", "explained_variance", "held_out_loss", "outcome"} <= set(told["metrics"])
    assert all(np.isfinite(list(told["metrics"].values())))
    counts, episodes = told["counts"], read(done.dense_model / "rollout", "episodes")
    assert counts["episodes"] + counts["held_out_episodes"] == len(episodes) == 20
    assert counts["held_out_tasks"] == 2
    assert counts["held_out_episodes"] in range(4, 7)
    panel = {task.task_id for task in load_panel(done.panels, "train")}
    assert episodes["task_id"].value_counts().to_dict() == {task: pytest.approx(2.5, abs=0.5) for task in panel}
    steps = (done.dense_model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in steps] == list(range(12))
    start, trained = (
        load_file(path / "model.safetensors") for path in (done.sft / "policy", done.dense_model / "model" / "backbone")
    )
    assert start.keys() == trained.keys()
    assert not any(torch.equal(start[name], trained[name]) for name in start if "layers" in name)


def test_the_explorer_is_paid_by_the_model_and_nobody_else_sees_it(done: Layout) -> None:
    model = load_dense_model(done.dense_model / "model")
    for iteration in (0, 2):
        for number in range(2):
            sampled = read(done.round("rspo", 0, iteration, number) / "rollout", "rollouts")
            sequences = turn_sequences(model, load_tokenizer(done.sft / "policy"), sampled)
            scores = sampled["turn_id"].map(dense_scores(model, sequences, experiment().training)[0])
            assert scores.nunique() > 2
            assert (scores.abs() < 1).all()
            credited = read(done.round("rspo", 0, iteration, number) / "dense", "rollouts")
            sums = scores.groupby(sampled["tree_id"]).sum()
            last = credited["done"].to_numpy()
            np.testing.assert_allclose(credited["process_reward"][last], sums[credited["tree_id"][last]], atol=1e-5)
            assert (credited["process_reward"][~last] == 0.0).all()
            told = manifest(done.round("rspo", 0, iteration, number) / "dense")
            assert told["metrics"]["dense_return"] == pytest.approx(sums.mean(), abs=1e-5)
            assert told["ledger"]["processed_tokens"] > 0
        assert not (done.round("rspo", 0, iteration, 2) / "dense").exists()
    for iteration in range(3):
        assert read(done.stage("rspo", 0, iteration, "replay"), "drawn")["process_reward"].isna().all()
    assert read(done.stage("rspo", 0, 2, "swap"), "buffer")["process_reward"].isna().all()


def test_p1_an_update_by_the_outcome_is_the_same_to_the_byte_without_the_model(done: Layout, tmp_path: Path) -> None:
    layout = Layout(Path(shutil.copytree(done.root, tmp_path / "tiny")))
    shutil.rmtree(layout.dense_model)
    shutil.rmtree(layout.iteration("rspo", 0, 1))
    run(layout, experiment(), 2, first=1)
    assert differing(layout, done, "iteration001") == []


def test_a_killed_stage_goes_on_and_so_does_a_killed_round(done: Layout, fresh: Layout) -> None:
    shutil.rmtree(fresh.dense_model)
    killed(lambda: dense_model(experiment(), fresh), stage_module, "save_dense_model", 1)
    collected = fresh.dense_model / "rollout" / "manifest.json"
    kept = collected.stat().st_mtime_ns
    assert read_manifest(fresh.dense_model) is None
    prepare_start(experiment(), fresh, lambda _: silent)
    assert collected.stat().st_mtime_ns == kept
    found, expected = (lasting_files(layout.dense_model) for layout in (fresh, done))
    assert found == expected
    killed(lambda: run(fresh, experiment(), 1), explore, "dense_rewards", 2)
    run(fresh, experiment(), 2)
    assert differing(fresh, done) == differing(fresh, done, "iteration001") == []


def test_the_model_of_other_settings_is_refused_and_another_model_begins_the_rounds_anew(
    done: Layout, fresh: Layout
) -> None:
    killed(lambda: run(fresh, experiment(), 1), explore, "dense_rewards", 2)
    other = experiment(
        dense_model=SECTIONS["dense_model"] | {"architecture": RAW["model"]["architecture"] | {"kind": "tiny"}}
    )
    with pytest.raises(AgentRLError, match="dense_model was made under another configuration of dense_model"):
        run(fresh, other, 1)
    sampled = fresh.dense_model / "rollout" / "manifest.json"
    kept = sampled.stat().st_mtime_ns
    prepare_start(other, fresh, lambda _: silent)
    assert sampled.stat().st_mtime_ns == kept
    assert manifest(fresh.dense_model)["outputs"]["model"] != manifest(done.dense_model)["outputs"]["model"]
    run(fresh, other, 1)
    learnt = [layout.round("rspo", 0, 0, 0) / "update" for layout in (fresh, done)]
    assert manifest(learnt[0])["outputs"]["policy"] != manifest(learnt[1])["outputs"]["policy"]
    shutil.rmtree(fresh.dense_model)
    with pytest.raises(AgentRLError, match="holds no finished dense_model"):
        run(fresh, other, 1)


def test_a_dense_reward_that_is_not_a_number_is_refused(fresh: Layout) -> None:
    tensors = fresh.dense_model / "model" / TENSORS
    save_file({name: value * torch.nan for name, value in load_file(tensors).items()}, tensors)
    with pytest.raises(AgentRLError, match=r"says nan of turn 's0\.i0\.e0\."):
        run(fresh, experiment(), 1)


def test_a_run_costs_the_episodes_of_its_model_too(done: Layout) -> None:
    explored = 2 * 4 + 8
    assert training_ledger(experiment(), done, "rspo", 0, 2)["episodes"] == 20 + explored + 2 * 4
    assert training_ledger(experiment(), done, "rspo", 0, 0) == {}
    own = experiment(algorithms={"rspo": METHOD | {"schedule": METHOD["schedule"] | {"source": "outcome"}}})
    assert not own.algorithms["rspo"].needs_dense_model


def test_an_environment_without_dense_rewards_will_do() -> None:
    check_experiment(experiment(environment={"base": "alfworld", "engine": "textworld"}))


def test_the_backbone_is_the_start_policy_s_or_one_of_its_own(done: Layout) -> None:
    start = done.sft / "policy"
    own = open_model(experiment(), start, "cpu")
    weights = load_file(start / "model.safetensors")
    assert all(torch.equal(own.language_model.state_dict()[name], value) for name, value in weights.items())
    pretrained = {"architecture": {"kind": "pretrained", "name_or_path": str(start)}}
    loaded = open_model(experiment(dense_model=pretrained), start, "cpu")
    assert (own.own_tokens, loaded.own_tokens) == (False, True)
    assert all(torch.equal(loaded.language_model.state_dict()[name], value) for name, value in weights.items())
    odd = {"architecture": {"kind": "tiny", "hidden_size": 30, "heads": 4}}
    with pytest.raises(AgentRLError, match=r"dense_model\.architecture\.hidden_size 30 must be a multiple"):
        open_model(experiment(dense_model=odd), start, "cpu")


@pytest.mark.parametrize(
    ("returns", "tasks", "message"),
    [
        ([0.0, 0.0, None], "abc", "outcomes of its 2 episodes are all the same"),
        ([0.0, 1.5, 1.0], "abc", "the return of 'e1' is 1.5; a model of dense rewards learns outcomes in"),
        ([0.0, 1.0, None], "aab", "all episodes are of one task"),
    ],
)
def test_episodes_that_teach_nothing_are_refused(returns: list[float | None], tasks: str, message: str) -> None:
    episodes = pd.DataFrame({"episode_id": ["e0", "e1", "e2"], "task_id": list(tasks), "return": returns})
    with pytest.raises(AgentRLError, match=message):
        labelled(episodes, Path("episodes.parquet"))


def test_the_command_finds_the_stage_finished_and_runs_of_other_methods_go_without(done: Layout, fresh: Layout) -> None:
    file = fresh.root.parent / "tiny.json"
    both = SECTIONS["algorithms"] | {"rloo": {"base": "rloo", "topology": {"group_size": 2}}}
    file.write_text(experiment(algorithms=both).model_dump_json(), encoding="utf-8")
    (fresh.root / "experiment.json").write_text(json.dumps({"name": "tiny"}), encoding="utf-8")
    where = ["--experiment", str(file), "--results", str(fresh.root.parent)]
    written = fresh.dense_model / "manifest.json"
    before = written.stat().st_mtime_ns
    result = CliRunner().invoke(app, ["dense-model", *where])
    assert result.exit_code == 0, result.output
    assert "held_out_loss" in result.stderr
    assert written.stat().st_mtime_ns == before
    shutil.rmtree(fresh.dense_model)
    result = CliRunner().invoke(app, ["train", "--algorithm", "rloo", "--last", "0", *where])
    assert result.exit_code == 0, result.output
    assert not fresh.dense_model.exists()


def make_both(world: World, layout: Layout) -> None:
    """What torchrun's processes do of `agentrl dense-model`."""
    if world.leads:
        dense_model(experiment(), layout)
    else:
        follow()


def test_two_processes_train_the_model_of_one(fresh: Layout, done: Layout) -> None:
    for name in ("model", "manifest.json", "metrics.jsonl", "outputs.json"):
        path = fresh.dense_model / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    in_processes(2, make_both, fresh)
    ours, theirs = (of.dense_model for of in (fresh, done))
    for path in (theirs / "model").rglob("*.json"):
        assert (ours / path.relative_to(theirs)).read_bytes() == path.read_bytes()
    for name in ("backbone/model.safetensors", TENSORS):
        found, expected = (load_file(of / "model" / name) for of in (ours, theirs))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert (manifest(ours)["processes"], manifest(theirs)["processes"]) == (2, 1)
    assert manifest(ours)["identity"] == manifest(theirs)["identity"]
    assert manifest(ours)["counts"] == manifest(theirs)["counts"]
    assert manifest(ours)["metrics"] == pytest.approx(manifest(theirs)["metrics"], rel=1e-3, abs=1e-5)


def run_both(world: World, layout: Layout) -> None:
    """What torchrun's processes do of `agentrl train` of one iteration."""
    if world.leads:
        run(layout, experiment(), 1)
    else:
        follow()


@pytest.mark.extras
def test_two_processes_say_the_dense_rewards_of_one(fresh: Layout, done: Layout) -> None:
    in_processes(2, run_both, fresh)
    explored = [next(iter(sorted(of.root.glob("runs/**/dense/rollouts.parquet")))) for of in (fresh, done)]
    ours, theirs = (pd.read_parquet(path) for path in explored)
    assert ours["turn_id"].tolist() == theirs["turn_id"].tolist()
    assert theirs["process_reward"].nunique() > 1
    np.testing.assert_allclose(ours["process_reward"], theirs["process_reward"], atol=1e-6)
    manifests = [of.stage("rspo", 0, 0, "update") / "manifest.json" for of in (fresh, done)]
    assert [json.loads(path.read_text())["processes"] for path in manifests] == [2, 1]
