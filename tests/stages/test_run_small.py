"""All stages on the smallest experiment: bits are reproducible, runs resume, foreign rollouts are scored alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from tiny_experiment import lasting_files, run_training, tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.stages import train as loop
from agentbench_rl.stages.compare import compare
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.types import advantage_schema, episode_schema, rollout_schema

STAGES = ("rollout", "score", "advantage", "update")


def test_two_runs_in_different_places_give_the_same_bytes(trained: Layout, tmp_path: Path) -> None:
    again = Layout(tmp_path / "elsewhere")
    run_training(tiny(), again, "rloo")
    files = lasting_files(again.root)
    expected = lasting_files(trained.root)
    assert any(name.endswith("model.safetensors") for name in files)
    assert any(name.endswith("advantages.parquet") for name in files)
    assert [name for name in files if files[name] != expected[name]] == []


def test_the_test_of_equal_bytes_can_fail(trained: Layout) -> None:
    """The run really learns: advantages are not all zero, and every update changes the policy."""
    for iteration in range(2):
        frame = pd.read_parquet(trained.stage("rloo", 0, iteration, "advantage") / "advantages.parquet")
        assert frame["advantage"].abs().max() > 0.01
    policies = [trained.start("rloo", 0, iteration) / "policy" / "model.safetensors" for iteration in range(3)]
    assert len({path.read_bytes() for path in policies}) == 3


def test_methods_sample_the_same_first_iteration(trained: Layout) -> None:
    """They start from one policy and use the same random numbers; only what they learn from it differs."""
    first = [trained.stage(method, 0, 0, "rollout") / "rollouts.parquet" for method in ("grpo", "rloo")]
    assert first[0].read_bytes() == first[1].read_bytes()
    later = [trained.stage(method, 0, 1, "rollout") / "rollouts.parquet" for method in ("grpo", "rloo")]
    assert later[0].read_bytes() != later[1].read_bytes()


@pytest.mark.parametrize("iteration", [0, 1])
def test_trainer_and_sampler_agree_on_every_sampled_token(trained: Layout, iteration: int) -> None:
    manifest = read_manifest(trained.stage("rloo", 0, iteration, "score"))
    assert manifest is not None
    assert 0 < manifest["metrics"]["logprob_difference_max"] < 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_files_follow_their_schemas_with_the_version(trained: Layout, stage: str) -> None:
    schemas = {"rollouts": rollout_schema(), "episodes": episode_schema(), "advantages": advantage_schema()}
    for path in trained.stage("grpo", 0, 1, stage).glob("*.parquet"):
        if path.stem in schemas:
            schema = pq.read_schema(path)
            assert schema.equals(schemas[path.stem])
            assert schema.metadata == schemas[path.stem].metadata


def test_every_asked_episode_was_played_in_groups(trained: Layout) -> None:
    episodes = pd.read_parquet(trained.stage("grpo", 0, 1, "rollout") / "episodes.parquet")
    assert episodes.groupby("group_id").size().tolist() == [2] * 4
    assert episodes["task_id"].nunique() == 4
    evaluated = pd.read_parquet(trained.test("grpo", 0) / "episodes.parquet")
    assert len(evaluated) == evaluated["task_id"].nunique() == 3


@pytest.mark.parametrize("broken", ["score", "update"])
def test_an_interrupted_run_resumes_to_the_same_files(
    trained: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    layout = Layout(tmp_path / "resumed")
    for start in ("panels", "demos", "sft"):
        shutil.copytree(trained.root / start, layout.root / start)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, broken, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_training(tiny(), layout, "rloo")
    kept = layout.stage("rloo", 0, 0, "rollout") / "manifest.json"
    before = kept.stat().st_mtime_ns
    run_training(tiny(), layout, "rloo")
    assert kept.stat().st_mtime_ns == before
    files, expected = lasting_files(layout.root), lasting_files(trained.root)
    assert [name for name in files if files[name] != expected[name]] == []


def test_a_longer_run_keeps_the_iterations_it_has(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    done = {path: path.stat().st_mtime_ns for path in layout.root.rglob("iteration*/*/manifest.json")}
    longer = tiny(training={"iterations": 3, "learning_rate": 1e-3, "minibatches": 2})
    run_training(longer, layout, "grpo")
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert read_manifest(layout.stage("grpo", 0, 2, "update")) is not None


def test_tables_are_the_same_wherever_they_are_made(trained_copy: Callable[[], Layout], tmp_path: Path) -> None:
    layout = trained_copy()
    compare(tiny(), layout)
    summary = (layout.tables / "summary.csv").read_bytes()
    figures = {path.name: path.read_bytes() for path in layout.tables.glob("*.svg")}
    shutil.rmtree(layout.tables)
    compare(tiny(), layout)
    assert (layout.tables / "summary.csv").read_bytes() == summary
    assert {path.name: path.read_bytes() for path in layout.tables.glob("*.svg")} == figures
    frame = pd.read_csv(layout.tables / "summary.csv")
    assert set(frame["method"]) == {"sft", "grpo", "rloo"}


OPTIONAL = ["parent_id", "branch", "event_id", "event_type", "event_size", "member", "anchor_key", "tool_calls"]


def test_foreign_rollouts_are_scored_like_our_own(trained: Layout, tmp_path: Path) -> None:
    own = trained.stage("rloo", 0, 1, "rollout")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    turns = pq.read_table(own / "rollouts.parquet").drop_columns(OPTIONAL)
    turns = turns.set_column(turns.column_names.index("step"), "step", turns["step"].cast("int64"))
    pq.write_table(turns.replace_schema_metadata(None), foreign / "rollouts.parquet")
    episodes = pq.read_table(own / "episodes.parquet").drop_columns(["success", "score"])
    pq.write_table(episodes.replace_schema_metadata(None), foreign / "episodes.parquet")

    configuration = tmp_path / "experiment.json"
    configuration.write_text(tiny().model_dump_json(), encoding="utf-8")
    out = tmp_path / "scores" / "advantages.parquet"
    command = ["advantage", str(foreign), "--algorithm", "rloo", "--experiment", str(configuration), "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    expected = pq.read_table(trained.stage("rloo", 0, 1, "advantage") / "advantages.parquet")
    assert pq.read_table(out).equals(expected)
    assert json.loads(result.stdout)["episodes"] == 8
    assert sorted(path.name for path in foreign.iterdir()) == ["episodes.parquet", "rollouts.parquet"]
