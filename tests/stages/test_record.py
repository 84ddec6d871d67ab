"""What a results directory says about itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_experiment import tiny

from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.record import (
    forget_foreign,
    parent_run,
    record_experiment,
    record_workplace,
    write_parent_run,
)
from agentbench_rl.types import AgentRLError


def test_the_recorded_experiment_is_the_experiment(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "tiny")
    record_experiment(tiny(), layout)
    assert load_experiment(layout.root / "experiment.json") == tiny()


def test_a_change_of_settings_is_recorded_and_no_change_touches_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "tiny")
    record_experiment(tiny(), layout)
    before = (layout.root / "experiment.json").stat().st_mtime_ns
    record_experiment(tiny(), layout)
    assert (layout.root / "experiment.json").stat().st_mtime_ns == before
    changed = tiny(seeds=[4])
    record_experiment(changed, layout)
    assert load_experiment(layout.root / "experiment.json") == changed


@pytest.mark.parametrize("text", [tiny(name="other").model_dump_json(), "{", "[]", json.dumps({"name": "other"})])
def test_the_results_of_another_experiment_are_refused_and_kept(tmp_path: Path, text: str) -> None:
    layout = Layout(tmp_path / "tiny")
    layout.root.mkdir()
    (layout.root / "experiment.json").write_text(text, encoding="utf-8")
    with pytest.raises(AgentRLError, match=r"holds the results of experiment .*, not of 'tiny'"):
        record_experiment(tiny(), layout)
    assert (layout.root / "experiment.json").read_text(encoding="utf-8") == text


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "tiny")
    layout.root.mkdir()
    (layout.root / "thesis.tex").touch()
    with pytest.raises(AgentRLError, match=r"is not empty and holds no experiment\.json"):
        record_experiment(tiny(), layout)


def test_stages_that_snakemake_has_no_records_of_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path / "results" / "tiny")
    record_experiment(tiny(), layout)
    done = layout.root / "sft" / "outputs.json"
    done.parent.mkdir()

    def looked_at() -> bool:
        done.write_text("{}", encoding="utf-8")
        told = forget_foreign(tiny(), layout)
        assert told == (not done.exists())
        return told

    assert looked_at()
    record_workplace(layout)
    assert not looked_at()
    (tmp_path / ".snakemake" / "agentrl_id").unlink()  # gone with Snakemake's records
    assert looked_at()


@pytest.mark.parametrize("text", [None, tiny(name="other").model_dump_json(), "{"])
def test_in_a_directory_of_something_else_no_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path / "results" / "tiny")
    theirs = layout.root / "thesis" / "outputs.json"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    if text is not None:
        (layout.root / "experiment.json").write_text(text, encoding="utf-8")
    assert not forget_foreign(tiny(), layout)
    assert theirs.exists()


def test_the_parent_run_is_remembered(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert parent_run(layout) is None
    write_parent_run(layout, "run7")
    assert parent_run(layout) == "run7"
