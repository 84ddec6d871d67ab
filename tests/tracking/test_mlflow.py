from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from agentbench_rl.tracking import mlflow as tracking
from agentbench_rl.tracking.metrics_log import MetricsLog
from agentbench_rl.types import AgentRLError
from tests.tracking.conftest import EXPERIMENT

ROOT = Path(__file__).resolve().parents[2]


def runs(store: Path) -> list[Any]:
    client = tracking._client(store)
    return list(client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id]))


def history(store: Path, run_id: str | None, name: str) -> list[tuple[int, float]]:
    assert run_id is not None
    return sorted((m.step, m.value) for m in tracking._client(store).get_metric_history(run_id, name))


def job(store: Path, **options: Any) -> Any:
    return tracking.job_run(store, EXPERIMENT, **{"job": "train/grpo/seed0", "identity": "abc", **options})


def test_names_and_numbers_that_mlflow_refuses_cost_no_other_metric(store: Path) -> None:
    values = {"val/acc@1": 0.5, "timing(s)/gen": 2.0, "bad": float("nan"), "huge": float("inf"), "none": None}
    with job(store) as run:
        run.metrics({**values, "/x//../y": 1.0}, step=3)
    (stored,) = runs(store)
    assert stored.data.metrics == {"val/acc_1": 0.5, "timing_s_/gen": 2.0, "x/y": 1.0}
    assert run.dropped_metrics == 3
    assert stored.data.tags["agentrl.dropped_metrics"] == "3"
    assert stored.info.status == "FINISHED"


def fails_after(store: Path, steps: int) -> tracking.JobRun:
    with contextlib.suppress(RuntimeError), job(store, params={"lr": 0.1}) as run:
        for step in range(steps):
            run.metrics({"loss": float(step)}, step)
        raise RuntimeError
    return cast("tracking.JobRun", run)


def test_a_resumed_job_continues_its_run_without_repeated_points(store: Path) -> None:
    first = fails_after(store, steps=3)
    assert runs(store)[0].info.status == "FAILED"
    with job(store, params={"lr": 0.2}) as second:
        for step in range(1, 5):
            second.metrics({"loss": 10.0 * step}, step)
    assert second.run_id == first.run_id
    assert history(store, first.run_id, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert [run.info.status for run in runs(store)] == ["FINISHED"]


def test_other_inputs_of_the_same_job_are_another_run(store: Path) -> None:
    with job(store, identity="one") as one, job(store, identity="two") as two:
        pass
    assert one.run_id != two.run_id


def test_lineage_parent_datasets_models_and_artifacts(store: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a\n")
    parent = tracking.start_parent(store, EXPERIMENT, {"a": {"b": "x" * 7000}, "c": [1]}, {"code": "f00"})
    assert parent is not None
    with job(store, parent=parent) as run:
        run.dataset("rollouts", "d" * 64, "train/rollouts.parquet", "rollouts")
        for _ in range(2):
            run.model("grpo/seed0/4", "train/policy", "e" * 64, {"success": 0.5})
        run.artifact(tmp_path / "table.csv")
    tracking.finish_parent(store, parent, [tmp_path / "table.csv"])
    client = tracking._client(store)
    child, top = client.get_run(run.run_id), client.get_run(parent)
    assert child.data.tags["mlflow.parentRunId"] == parent
    assert child.inputs.dataset_inputs[0].dataset.name == "rollouts"
    assert json.loads(child.inputs.dataset_inputs[0].dataset.source)["digest"] == "d" * 64
    (model,) = client.search_logged_models([child.info.experiment_id])
    assert [(metric.key, metric.value) for metric in model.metrics] == [("success", 0.5)]
    assert top.data.params == {"a.b": "x" * 6000, "c": "[1]"}
    assert {file.path for file in client.list_artifacts(parent)} == {"config.json", "table.csv"}
    assert top.info.status == "FINISHED"


def test_at_most_fifty_settings_become_parameters(store: Path) -> None:
    with job(store, params={f"k{n}": n for n in range(80)}):
        pass
    assert len(runs(store)[0].data.params) == 50


SCRIPT = """
import sys, time
from pathlib import Path
from agentbench_rl.tracking.mlflow import job_run
with job_run(Path(sys.argv[1]), "comparison", job=sys.argv[2], identity="i") as run:
    run.metrics({"loss": 1.0}, 0)
    print("ready", flush=True)
    time.sleep(float(sys.argv[3]))
"""


def test_jobs_of_one_store_run_side_by_side_and_sigterm_leaves_a_killed_run(store: Path) -> None:
    """Each interpreter takes seconds to import MLflow, so one test looks at both."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(store), name, seconds],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, seconds in (("long", "60"), ("short", "0"))
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    processes[0].send_signal(signal.SIGTERM)
    assert [process.communicate(timeout=30)[1] for process in processes] == [b"", b""]
    assert [process.returncode for process in processes] == [143, 0]
    endings = {run.data.tags["agentrl.job"]: run.info.status for run in runs(store)}
    assert endings == {"long": "KILLED", "short": "FINISHED"}


def works_without_tracking(store: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a job through the whole adapter and return what it said on stderr."""
    parent = tracking.start_parent(store, EXPERIMENT, {"a": 1}, {})
    done = []
    with job(store, parent=parent) as run:
        run.metrics({"loss": 1.0}, 0)
        run.dataset("d", "0", "p", "c")
        run.model("m", "p", "0", {})
        run.artifact(store / "absent")
        done.append(run.run_id)
    tracking.finish_parent(store, parent, [])
    assert parent is None
    assert done == [None]
    return capsys.readouterr().err


def test_an_absent_store_is_reported_once_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = works_without_tracking(tmp_path / "nowhere", capsys)
    assert errors.count("MLflow tracking is off") == 1
    assert len(errors.splitlines()) == 1


def test_a_corrupt_database_is_reported_once_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)
    assert works_without_tracking(tmp_path, capsys).count("warning: MLflow tracking is off") == 1


def test_a_missing_package_is_reported_once_and_stops_nothing(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    assert works_without_tracking(store, capsys).count("MLflow tracking is off (ModuleNotFoundError") == 1


def test_a_store_that_cannot_be_written_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("no directory")
    tracking.prepare(tmp_path / "file" / "store", EXPERIMENT, tmp_path / "lock")
    assert capsys.readouterr().err.count("MLflow tracking is off (NotADirectoryError") == 1
    works_without_tracking(tmp_path / "file" / "store", capsys)


def test_a_store_that_breaks_in_the_middle_stops_nothing_and_sync_completes_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "results" / "grpo"
    log = MetricsLog(directory / "metrics.jsonl")
    with job(store) as run:
        for step in range(4):
            log.append(step, {"acc@1": step / 4})
            with monkeypatch.context() as patch:
                if step == 1:
                    patch.setattr(tracking, "_metrics", lambda *_: 1 / 0)
                run.metrics({"acc@1": step / 4}, step)
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert history(store, run.run_id, "acc_1") == [(0, 0.0)]
    assert tracking.sync(store, EXPERIMENT, tmp_path / "results") == 0
    manifest = {"job": "train/grpo/seed0", "identity": "abc", "config": {"lr": 0.1}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    for _ in range(2):
        assert tracking.sync(store, EXPERIMENT, tmp_path / "results") == 1
    assert history(store, run.run_id, "acc_1") == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]
    assert len(runs(store)) == 1


def test_sync_creates_the_runs_that_the_store_has_never_seen(store: Path, tmp_path: Path) -> None:
    MetricsLog(tmp_path / "a" / "metrics.jsonl").append(0, {"loss": 1.0})
    manifest = {"job": "a", "identity": "1", "config": {"x": 2}}
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest))
    tracking.sync(store, EXPERIMENT, tmp_path)
    (run,) = runs(store)
    assert (run.data.metrics, run.data.params) == ({"loss": 1.0}, {"x": "2"})
    (tmp_path / "a" / "manifest.json").write_text("{}")
    with pytest.raises(AgentRLError, match=r"manifest\.json lacks identity, job"):
        tracking.sync(store, EXPERIMENT, tmp_path)


def test_importing_the_adapter_imports_no_mlflow() -> None:
    code = "import sys, agentbench_rl.tracking.mlflow; print('mlflow' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert result.stdout == b"False\n"
