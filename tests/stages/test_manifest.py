"""Running a stage: what makes a result current, what happens to broken, foreign and concurrent work."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbench_rl.config import Json
from agentbench_rl.stages import manifest as module
from agentbench_rl.stages.manifest import StageReport, merge_ledgers, read_manifest, require, run_stage
from agentbench_rl.types import AgentRLError


class Stage:
    """A stage that copies its input, writes a volatile file and counts how often it computed."""

    def __init__(self, place: Path) -> None:
        self.out, self.input = place / "out", place / "input"
        self.calls = 0
        self.config: Json = {"a": 1}
        self.seeds = {"seed": 0}
        self.inside: Callable[[Path], None] = lambda _: None
        place.mkdir(exist_ok=True)
        self.input.write_text("content", encoding="utf-8")

    def run(self) -> Json:
        inputs = {"data": self.input}
        return run_stage("advantage", self.out, config=self.config, inputs=inputs, seeds=self.seeds, body=self._body)

    def _body(self, scratch: Path) -> StageReport:
        self.calls += 1
        (scratch / "result").mkdir()
        (scratch / "result" / "copy").write_text(self.input.read_text(encoding="utf-8"), encoding="utf-8")
        (scratch / "timings.parquet").write_text(str(self.calls), encoding="utf-8")
        self.inside(scratch)
        return StageReport(counts={"files": 2}, ledger={"episodes": 3.0}, metrics={"x": 0.5})

    def text(self) -> str:
        return (self.out / "result" / "copy").read_text(encoding="utf-8")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_finished_stage_is_kept_as_it_is(stage: Stage) -> None:
    first = stage.run()
    before = (stage.out / "outputs.json").stat().st_mtime_ns
    assert stage.run() == first == read_manifest(stage.out)
    assert stage.calls == 1
    assert (stage.out / "outputs.json").stat().st_mtime_ns == before


def test_a_manifest_tells_identity_counts_and_costs(stage: Stage) -> None:
    manifest = stage.run()
    assert manifest["identity"]["inputs"].keys() == {"data"}
    assert manifest["identity"]["libraries"].keys() >= {"torch", "numpy", "pyarrow"}
    assert manifest["identity"]["seeds"] == {"seed": 0}
    assert (manifest["counts"], manifest["metrics"], manifest["config"]) == ({"files": 2}, {"x": 0.5}, {"a": 1})
    assert manifest["ledger"]["episodes"] == 3.0
    assert manifest["ledger"]["wall_seconds"] >= 0


@pytest.mark.parametrize("what", ["config", "input", "seed", "code"])
def test_a_change_of_what_the_result_depends_on_computes_it_again(
    stage: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run()
    if what == "config":
        stage.config = {"a": 2}
    elif what == "input":
        stage.input.write_text("new content", encoding="utf-8")
    elif what == "seed":
        stage.seeds = {"seed": 1}
    else:
        monkeypatch.setattr(module, "code_fingerprint", lambda stage, family: "other code")
    stage.run()
    assert stage.calls == 2
    assert stage.text() == stage.input.read_text(encoding="utf-8")
    stage.run()
    assert stage.calls == 2


def test_only_the_content_of_an_input_counts_not_its_place_or_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run()
    moved = tmp_path / "elsewhere"
    stage.input.rename(moved)
    stage.input = moved
    stage.run()
    assert stage.calls == 1


def test_outputs_without_a_manifest_are_unfinished_work(stage: Stage) -> None:
    stage.out.mkdir()
    (stage.out / "result").mkdir()
    (stage.out / "result" / "copy").write_text("half", encoding="utf-8")
    (stage.out / "result" / "leftover").write_text("half", encoding="utf-8")
    (stage.out / ".partial").mkdir()
    (stage.out / ".partial" / "copy").write_text("half", encoding="utf-8")
    with pytest.raises(AgentRLError, match="no finished rollout"):
        require(stage.out, "rollout", {})
    stage.run()
    assert stage.text() == "content"
    assert not (stage.out / "result" / "leftover").exists()
    assert not (stage.out / ".partial").exists()


@pytest.mark.parametrize("damage", ["changed", "removed", "added"])
def test_a_damaged_output_is_computed_again(stage: Stage, damage: str) -> None:
    stage.run()
    copy = stage.out / "result" / "copy"
    if damage == "changed":
        copy.write_text("cont", encoding="utf-8")
    elif damage == "removed":
        copy.unlink()
    else:
        (stage.out / "result" / "stranger").write_text("?", encoding="utf-8")
    stage.run()
    assert stage.calls == 2
    assert stage.text() == "content"
    assert not (stage.out / "result" / "stranger").exists()


def test_a_failing_stage_leaves_the_previous_result_whole(stage: Stage) -> None:
    first = stage.run()
    stage.config = {"a": 2}

    def fail(scratch: Path) -> None:
        raise RuntimeError("in the middle")

    stage.inside = fail
    with pytest.raises(RuntimeError, match="in the middle"):
        stage.run()
    assert read_manifest(stage.out) == first
    stage.config = {"a": 1}
    assert stage.run() == first
    assert stage.calls == 2


def test_a_stop_between_the_outputs_and_the_manifest_is_unfinished_work(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run()
    stage.config = {"a": 2}
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", lambda path, text: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stage.run()
    assert read_manifest(stage.out) is None
    stage.run()
    assert stage.calls == 3


def test_a_directory_in_use_by_another_process_is_refused(stage: Stage) -> None:
    stage.out.mkdir()
    code = f"import fcntl, time; f = open({str(stage.out / '.lock')!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    code += "print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(AgentRLError, match="is being written by another process"):
            stage.run()
        other.kill()
    stage.run()
    assert stage.calls == 1


def test_the_lock_is_free_after_a_failure(stage: Stage) -> None:
    def fail(scratch: Path) -> None:
        raise RuntimeError

    stage.inside = fail
    with pytest.raises(RuntimeError):
        stage.run()
    with (stage.out / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_volatile_files_are_in_no_identity(tmp_path: Path) -> None:
    stages = [Stage(tmp_path / name) for name in ("one", "two")]
    stages[1].calls = 5
    for stage in stages:
        stage.run()
    one, two = ((stage.out / "outputs.json").read_text(encoding="utf-8") for stage in stages)
    assert one == two
    assert json.loads(one).keys() == {"result"}
    (stages[0].out / "timings.parquet").unlink()
    stages[0].run()
    assert stages[0].calls == 1


def test_a_missing_input_is_named(stage: Stage) -> None:
    stage.input.unlink()
    with pytest.raises(AgentRLError, match=r"its input data is missing: .*input"):
        stage.run()


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not a readable manifest"), ('{"schema": 99}', "newer version"), ("[]", "newer version"), ("{}", "delete")],
)
def test_a_broken_manifest_is_named(stage: Stage, text: str, message: str) -> None:
    stage.out.mkdir()
    (stage.out / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(AgentRLError, match=message):
        stage.run()


def test_ledgers_add_up_entry_by_entry() -> None:
    assert merge_ledgers([{"a": 1, "b": 2.5}, {"b": 0.5, "c": 3}]) == {"a": 1.0, "b": 3.0, "c": 3.0}
