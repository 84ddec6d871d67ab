"""What a user can do wrong, or a machine: a message on stderr, an exit code, no traceback, nothing finished lost."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tiny_experiment import lasting_files, tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.stages import files, rollout, update
from agentbench_rl.stages.layout import Layout


class Project:
    """A results directory with the trained experiment, and commands that work on it."""

    def __init__(self, layout: Layout, place: Path) -> None:
        self.layout, self.results = layout, layout.root.parent
        self.file = place / "tiny.json"
        self.file.write_text(tiny().model_dump_json(), encoding="utf-8")

    def run(self, *arguments: str, experiment: str | None = None) -> Result:
        where = ["--experiment", experiment or str(self.file), "--results", str(self.results)]
        return CliRunner().invoke(app, [*arguments, *where])


@pytest.fixture
def project(trained_copy: Callable[[], Layout], tmp_path: Path) -> Project:
    project = Project(trained_copy(), tmp_path)
    (project.layout.root / "experiment.json").write_text(
        json.dumps(tiny().model_dump(mode="json"), indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    return project


def assert_explained(result: Result, *parts: str, code: int = 1) -> None:
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "agentrl: " in result.stderr
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


ROLLOUT = ("rollout", "--algorithm", "rloo", "--iteration")


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("panel", "--set", "panels.trian.size=3"), ("panels.trian", "unknown key")),
        (("panel", "--set", "rollout=3"), ("rollout",)),
        (("panel", "--set", "environment.data=/no/such/games"), ("environment.data", "/no/such/games", "fetch")),
        (("panel", "--set", "panels.train.split=trian"), ("trian", "valid_seen")),
        ((*ROLLOUT, "0", "--set", "rollout.tasks_per_iteration=99"), ("99", "8 tasks")),
        ((*ROLLOUT, "7"), ("policy", "iteration006")),
        (("rollout", "--algorithm", "rlo"), ("unknown algorithm 'rlo'", "'rloo'")),
        (("train", "--algorithm", "rlo"), ("unknown algorithm 'rlo'", "'rloo'")),
        (("eval", "test", "--algorithm", "rlo"), ("unknown algorithm 'rlo'", "'rloo'")),
        (("eval", "test"), ("--algorithm",)),
        (("train", "--algorithm", "rloo", "--first", "1", "--last", "0"), ("--last 0", "--first 1")),
        (("train", "--algorithm", "rloo", "--first", "2"), ("--first 2",)),
        (("train", "--algorithm", "rloo", "--last", "2"), ("--last 2", "2 iterations end with 1")),
        (("advantage", "."), ("--out",)),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(
    project: Project, command: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    before = lasting_files(project.layout.root)
    assert_explained(project.run(*command), *parts)
    after = lasting_files(project.layout.root)
    assert {name: after.get(name) for name in before if name != "experiment.json"} == {
        name: content for name, content in before.items() if name != "experiment.json"
    }


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("panel", "--experiment", "quikstart"), ("unknown experiment", "quickstart")),
        (("panel", "--experiment", "mine.yaml"), ("mine.yaml", "no such configuration file")),
        (("config", "show", "--experiment", "smok"), ("unknown experiment", "smoke")),
        (("algorithms", "show", "pppo"), ("unknown algorithm 'pppo'", "gigpo")),
        (("env", "check", "alfwold"), ("unknown environment 'alfwold'", "alfworld")),
        (("env", "fetch", "chess", "there"), ("chess", "alfworld")),
        (("advantage", "nowhere", "--out", "x.parquet"), ("nowhere/rollouts.parquet", "no such file")),
        (("show", "nowhere"), ("nowhere/episodes.parquet", "no such file")),
        (("ui", "--results", "nowhere"), ("mlflow.db", "agentrl run")),
        (("run",), ("Snakefile",)),
    ],
)
def test_an_unknown_name_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_explained(CliRunner().invoke(app, list(command)), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["rollout", "train"])
def test_a_preset_that_needs_what_the_experiment_lacks_is_refused(project: Project, command: str) -> None:
    result = project.run(command, "--algorithm", "mt-grpo", "--set", "environment.engine=textworld")
    assert_explained(result, "algorithm mt-grpo: advantage.estimator: mt_grpo needs dense rewards")


def test_the_results_of_another_experiment_are_refused(project: Project) -> None:
    other = json.dumps({"name": "other"})
    (project.layout.root / "experiment.json").write_text(other, encoding="utf-8")
    assert_explained(project.run("panel"), "'other'", "'tiny'")
    assert (project.layout.root / "experiment.json").read_text(encoding="utf-8") == other


def test_a_policy_without_weights_is_named(project: Project) -> None:
    for weights in (project.layout.sft / "policy").glob("*.safetensors"):
        weights.unlink()
    assert_explained(project.run(*ROLLOUT, "0"), "sft/policy", "no weights")


def test_truncated_rollouts_are_named(project: Project) -> None:
    file = project.layout.stage("rloo", 0, 0, "rollout") / "rollouts.parquet"
    file.write_bytes(file.read_bytes()[:500])
    assert_explained(project.run("advantage", "--algorithm", "rloo"), "rollouts.parquet", "not a readable Parquet file")


def test_a_truncated_packed_game_file_is_named(project: Project) -> None:
    games = project.layout.panels / "games" / "games_train.jsonl.xz"
    games.write_bytes(games.read_bytes()[:-40])
    assert_explained(project.run(*ROLLOUT, "0"), "games_train.jsonl.xz")


def test_a_truncated_official_game_file_is_named(project: Project, tmp_path: Path) -> None:
    from agentbench_rl.envs.alfworld.gamefile import load_games

    data = tmp_path / "data"
    for split in ("train", "valid_seen", "valid_unseen"):
        for game in load_games(project.layout.panels / "games", split):
            file = data / "json_2.1.1" / game.task_id / "game.tw-pddl"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(game.as_json()), encoding="utf-8")
    setting = ("--set", f"environment.data={data}")
    assert project.run("panel", *setting).exit_code == 0
    file.write_text(file.read_text(encoding="utf-8")[:1000], encoding="utf-8")
    assert_explained(project.run("panel", *setting), str(file))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EACCES, "access"), (errno.EROFS, "access")],
)
def test_a_full_or_forbidden_disk_is_explained_and_loses_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    before = lasting_files(project.layout.stage("rloo", 0, 0, "rollout"))
    error = OSError(number, "No space left on device", "rollouts.parquet")
    monkeypatch.setattr("agentbench_rl.stages.sampling.write_rows", raising(error))
    result = project.run(*ROLLOUT, "0", "--set", "rollout.batch_slots=4")
    assert_explained(result, "No space left on device (rollouts.parquet)", "Nothing that was finished is lost", remedy)
    assert before.items() <= lasting_files(project.layout.stage("rloo", 0, 0, "rollout")).items()


def test_a_path_that_cannot_be_written_is_named_and_has_nothing_to_do_with_room(
    project: Project, tmp_path: Path
) -> None:
    rollouts = str(project.layout.stage("rloo", 0, 0, "rollout"))
    file, directory = tmp_path / "README.md", tmp_path / "there"
    file.write_text("a file", encoding="utf-8")
    directory.mkdir()
    experiment = ("--experiment", str(project.file))
    for command, named in [
        (["panel", *experiment, "--results", str(file)], file),
        (["panel", *experiment, "--results", str(tmp_path / ("n" * 300))], tmp_path / ("n" * 300)),
        (["advantage", rollouts, *experiment, "--algorithm", "rloo", "--out", str(directory)], directory),
        (["advantage", rollouts, *experiment, "--algorithm", "rloo", "--out", str(file / "x.parquet")], file),
    ]:
        result = CliRunner().invoke(app, command)
        assert_explained(result, str(named))
        assert "room" not in result.stderr


def test_a_task_beyond_the_split_is_refused_with_the_number_of_tasks(project: Project) -> None:
    games = project.layout.panels / "games"
    command = ["env", "play", "--split", "valid_unseen", "--index", "3", "--set", f"environment.data={games}"]
    assert_explained(CliRunner().invoke(app, command), "--index 3", "valid_unseen has 3 tasks")


def test_a_disk_that_fills_while_results_are_published_loses_no_other_stage(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lasting_files(project.layout.stage("rloo", 0, 0, "rollout"))
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
        result = project.run("advantage", "--algorithm", "rloo", "--set", "algorithms.rloo.reward.scale=2")
        assert_explained(result, "No space left on device")
    assert lasting_files(project.layout.stage("rloo", 0, 0, "rollout")) == before
    assert project.run("advantage", "--algorithm", "rloo").exit_code == 0


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed learning rate makes the updates stale; the first is interrupted, and what came before it is kept."""
    kept = {path: path.stat().st_mtime_ns for path in project.layout.root.rglob("iteration000/*/manifest.json")}
    command = ("train", "--algorithm", "rloo", "--set", "training.learning_rate=1e-5")
    with monkeypatch.context() as patch:
        patch.setattr(update, "update_policy", raising(KeyboardInterrupt()))
        assert_explained(project.run(*command), "interrupted", "goes on from there", code=130)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert project.run(*command).exit_code == 0
    changed = {path.parent.name for path in kept if path.stat().st_mtime_ns != kept[path] and "rloo" in str(path)}
    assert changed == {"update"}


def test_a_fault_of_the_program_keeps_its_traceback(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "player", raising(ZeroDivisionError("a bug")))
    result = project.run(*ROLLOUT, "0", "--set", "rollout.batch_slots=4")
    assert isinstance(result.exception, ZeroDivisionError)
