"""The DAG in online mode, through Snakemake and the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dag import REPOSITORY, planned, results, run
from tiny_experiment import lasting_files

from agentbench_rl.stages.layout import Layout


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny experiment."""
    directory = tmp_path_factory.mktemp("online")
    run(directory)
    return directory


def test_run_ends_with_table_figures_and_report(online: Path) -> None:
    root = online / "results" / "tiny"
    table = (root / "tables" / "summary.csv").read_text(encoding="utf-8").splitlines()
    assert table[0].startswith("method,metric,mean,low,high,interval_over,episodes,seeds,sampled_tokens,updates")
    assert [line.split(",")[0] for line in table if ",success," in line] == ["sft", "grpo", "rloo"]
    assert (root / "tables" / "curves_updates.png").stat().st_size > 1000
    assert "<table" in (root / "report" / "report.html").read_text(encoding="utf-8")


def test_jobs_write_the_same_bytes_as_the_stage_functions_in_one_process(online: Path, trained: Layout) -> None:
    expected = {name: content for name, content in lasting_files(trained.root).items() if "segments/" not in name}
    found = results(online)
    assert {name for name in expected if found.get(name) != expected[name]} == set()
    assert any(name.endswith("policy/model.safetensors") for name in expected)


def test_second_run_has_nothing_to_do(online: Path) -> None:
    assert "Nothing to be done" in run(online, "--dry-run")


def test_changing_one_methods_setting_runs_its_branch_only(online: Path) -> None:
    output = run(online, "--dry-run", "--set", "algorithms.rloo.loss.clip_low=0.1")
    assert planned(output) == {"train": 2, "evaluate_test": 1, "compare": 1, "report": 1, "all": 1, "total": 6}
    assert "algorithm=rloo" in output
    assert "algorithm=grpo" not in output


def test_moving_the_validations_runs_the_segments_that_lack_one(online: Path) -> None:
    jobs = planned(run(online, "--dry-run", "--set", "evaluation.every=1"))
    assert jobs["train"] == 4
    assert "sft" not in jobs


def test_results_that_snakemake_has_no_record_of_are_looked_at_again_and_kept(online: Path, tmp_path: Path) -> None:
    shutil.copytree(online / "results", tmp_path / "results")
    jobs = planned(run(tmp_path, "--dry-run", "--set", "training.learning_rate=0.5"))
    assert jobs["panel"] == jobs["compare"] == jobs["report"] == 1
    assert jobs["train"] == 4
    start = tmp_path / "results" / "tiny" / "sft"
    written = (start / "policy" / "model.safetensors").stat().st_mtime_ns
    run(tmp_path, "--until", "sft")
    assert (start / "policy" / "model.safetensors").stat().st_mtime_ns == written
    assert (start / "outputs.json").read_bytes() == (online / "results" / "tiny" / "sft" / "outputs.json").read_bytes()
    assert "sft" not in planned(run(tmp_path, "--dry-run"))


def test_editing_an_advantage_module_runs_advantages_and_what_follows(online: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(REPOSITORY / "agentbench_rl", package / "agentbench_rl")
    shutil.copytree(REPOSITORY / "configs", package / "configs")
    module = package / "agentbench_rl" / "algorithms" / "advantages" / "gigpo.py"
    module.write_text(module.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")
    jobs = planned(run(online, "--dry-run", package=package))
    assert jobs == {"train": 4, "evaluate_test": 2, "compare": 1, "report": 1, "all": 1, "total": 9}
