"""A job's metrics: `metrics.jsonl` first, MLflow second; and what later uploads need to know about the job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentbench_rl.tracking.metrics_log import MetricsLog
from agentbench_rl.tracking.mlflow import JobRun, Store, job_run, prepare


class Job:
    """What a running command logs to; `run` is its MLflow run, or None where the experiment is not tracked."""

    def __init__(self, log: MetricsLog, run: JobRun | None) -> None:
        self._log, self._run = log, run

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record finite numbers at a step."""
        self._log.append(step, values)
        if self._run is not None:
            self._run.metrics(values, step)

    def dataset(self, name: str, digest: str, path: Path, context: str) -> None:
        """Record a file as a dataset of the job."""
        if self._run is not None:
            self._run.dataset(name, digest, str(path), context)

    def model(self, name: str, path: Path, digest: str, metrics: Mapping[str, float], step: int) -> None:
        """Record a checkpoint with its evaluation."""
        if self._run is not None:
            self._run.model(name, str(path), digest, metrics, step)

    def artifact(self, path: Path) -> None:
        """Copy a file to the artifacts of the job."""
        if self._run is not None:
            self._run.artifact(path)


@contextmanager
def open_job(
    directory: Path,
    store: Store | None,
    experiment: str,
    *,
    job: str,
    identity: str,
    config: Mapping[str, object],
    parent: str | None,
) -> Iterator[Job]:
    """Open the log of a job in `directory`, and its MLflow run in `store` (None: not tracked).

    A job that runs again tells its finished stages again, so its log starts anew; MLflow skips what it has.
    """
    log = MetricsLog(directory / "metrics.jsonl", resume_step=-1)
    with ExitStack() as stack:
        stack.callback(log.close)
        run = None
        if store is not None:
            lock = (store / ".mlflow.lock") if isinstance(store, Path) else directory / ".mlflow.lock"
            prepare(store, experiment, lock)
            run = stack.enter_context(
                job_run(store, experiment, job=job, identity=identity, parent=parent, params=config)
            )
            if run.run_id:
                os.environ["AGENTRL_RUN_ID"] = run.run_id
        yield Job(log, run)
    content = {"job": job, "identity": identity, "config": dict(config)}
    (directory / "manifest.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
