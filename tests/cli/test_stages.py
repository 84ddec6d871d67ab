"""What the commands of stages tell: progress of long stages, and the files that a job read or wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_experiment import tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.score import score
from agentbench_rl.stages.update import update
from agentbench_rl.tracking.job import Job

#: Runs a command and gives what it printed.
Invoke = Callable[..., str]


@pytest.fixture
def invoke(trained_copy: Callable[[], Layout], tmp_path: Path) -> Invoke:
    """Runs a command on the trained experiment."""
    layout = trained_copy()
    (tmp_path / "tiny.json").write_text(tiny().model_dump_json(), encoding="utf-8")
    (layout.root / "experiment.json").write_text(json.dumps({"name": "tiny"}), encoding="utf-8")

    def run(*command: str) -> str:
        where = ["--experiment", str(tmp_path / "tiny.json"), "--results", str(layout.root.parent)]
        result = CliRunner().invoke(app, [*command, *where])
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(name, context) of the datasets that jobs record."""
    recorded: list[tuple[str, str]] = []

    def dataset(self: Job, name: str, digest: str, path: Path, context: str) -> None:
        assert path.is_file()
        recorded.append((name, context))

    monkeypatch.setattr(Job, "dataset", dataset)
    return recorded


def test_an_online_run_records_the_rollouts_and_advantages_of_every_iteration(
    invoke: Invoke, datasets: list[tuple[str, str]]
) -> None:
    invoke("train", "--algorithm", "rloo")
    assert datasets == [
        (f"iteration00{iteration}/{name}", context)
        for iteration in range(2)
        for name, context in (("rollout/rollouts.parquet", "rollouts"), ("advantage/advantages.parquet", "advantages"))
    ]


@pytest.mark.parametrize("what", ["start-validation", "start-test", "validation", "test"])
def test_an_evaluation_records_its_panel(invoke: Invoke, datasets: list[tuple[str, str]], what: str) -> None:
    invoke("eval", what, "--algorithm", "rloo", "--iteration", "1")
    assert datasets == [(f"panels/{what.removeprefix('start-')}.json", "panel")]


def test_a_negative_seed_is_refused() -> None:
    result = CliRunner().invoke(app, ["rollout", "--algorithm", "rloo", "--seed", "-1"])
    assert result.exit_code == 2
    assert "--seed" in result.stderr


def test_scoring_and_updating_tell_how_far_they_are(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    experiment = tiny(training={"iterations": 2, "learning_rate": 2e-3, "minibatches": 2, "micro_batch_tokens": 4000})
    told: dict[str, list[tuple[int, int]]] = {"score": [], "update": []}
    score(experiment, layout, "grpo", 0, 0, lambda *at: told["score"].append(at))
    update(experiment, layout, "grpo", 0, 0, lambda *at: told["update"].append(at))
    total = told["score"][-1][1]
    assert total > 2
    assert told["score"] == [(done, total) for done in range(1, total + 1)]
    assert told["update"] == [(1, 2), (2, 2)]


def test_it_is_said_that_entropies_of_top_k_log_probs_are_lower_bounds(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = Layout(tmp_path / "results" / "tiny").stage("rloo", 0, 0, "rollout")
    command = ("rollout", "--algorithm", "rloo", "--seed", "0", "--iteration", "0")
    assert "lower bounds" not in invoke(*command)
    monkeypatch.setattr(HFSampler, "entropies_are_lower_bounds", True)
    (directory / "manifest.json").unlink()
    assert "entropies are lower bounds" in invoke(*command)
    assert json.loads((directory / "manifest.json").read_text())["metrics"]["entropies_are_lower_bounds"] == 1.0
