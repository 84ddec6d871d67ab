"""The MLflow adapter: one experiment per comparison, one parent run per invocation, one child run per job.

MLflow is a second copy of `metrics.jsonl`. So a failure here is reported once on stderr, turns tracking off
for the rest of the job, and never reaches it; `sync` uploads what is missing. A store is a directory (with
`mlflow.db` and `artifacts/` in it) or the URI of a tracking server.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from agentbench_rl.tracking import metrics_log
from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

Store = Path | str

_JOB, _INPUTS, _PARENT, _DIGEST = "agentrl.job", "agentrl.inputs", "mlflow.parentRunId", "agentrl.digest"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A server that does not answer must not hold a job up for the quarter of an hour that MLflow would wait.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
_MAX_PARAMS, _MAX_VALUE, _MAX_NAME = 50, 6000, 250
_warned: set[str] = set()


class Terminated(SystemExit):
    """SIGTERM arrived: the job unwinds, and exits as a shell reports that signal."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def prepare(store: Store, experiment: str, lock: Path) -> None:
    """Create or migrate the store and the experiment before parallel jobs start; `lock` is held meanwhile."""
    import fcntl

    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if isinstance(store, Path):
                store.mkdir(parents=True, exist_ok=True)
            client = _client(store)
            if client.get_experiment_by_name(experiment) is None:
                beside = (store / "artifacts").resolve().as_uri() if isinstance(store, Path) else None
                # The kind makes the web page open on runs and metrics rather than on traces.
                tags = {"mlflow.experimentKind": "custom_model_development"}
                client.create_experiment(experiment, artifact_location=beside, tags=tags)
    except Exception as error:
        _warn(store, error)


def start_parent(store: Store, experiment: str, config: Mapping[str, object], tags: Mapping[str, str]) -> str | None:
    """Start the run of one invocation, with its config as an artifact; None when tracking does not work."""
    try:
        client, experiment_id = _connect(store, experiment)
        run_id = str(client.create_run(experiment_id, tags=dict(tags), run_name=experiment).info.run_id)
        client.log_batch(run_id, params=_params(config))
        client.log_dict(run_id, dict(config), "config.json")
        return run_id
    except Exception as error:
        _warn(store, error)
        return None


def finish_parent(store: Store, run_id: str | None, artifacts: Sequence[Path], status: str = "FINISHED") -> None:
    """Attach tables, curves and the report to the parent run and close it."""
    if run_id is None:
        return
    try:
        client = _client(store)
        for path in artifacts:
            client.log_artifact(run_id, str(path))
        client.set_terminated(run_id, status)
    except Exception as error:
        _warn(store, error)


class JobRun:
    """The run of one job; every method returns quietly when tracking does not work."""

    def __init__(self, store: Store, client: MlflowClient | None, experiment_id: str, run_id: str) -> None:
        self.run_id = run_id if client else None
        self.dropped_metrics = 0
        self.broken = client is None
        self._store, self._client, self._experiment_id, self._id = store, client, experiment_id, run_id
        self._logged: set[tuple[str, int]] = set()

    def recall(self, client: MlflowClient, names: Iterable[str]) -> None:
        """Learn which steps of these metrics the run already has."""
        for name in names:
            self._logged |= {(name, point.step) for point in client.get_metric_history(self._id, name)}

    def metrics(self, values: Mapping[str, float | None], step: int) -> None:
        """Log finite numbers under names that MLflow accepts; what the run has of this step is skipped.

        `dropped_metrics` counts the values that were no finite number.
        """
        named = {_metric_name(name): value for name, value in values.items()}
        finite = {name: value for name, value in named.items() if value is not None and math.isfinite(value)}
        self.dropped_metrics += len(named) - len(finite)
        fresh = {name: value for name, value in finite.items() if (name, step) not in self._logged}
        if fresh:
            self._call(lambda client: client.log_batch(self._id, metrics=_metrics(fresh, step)))
        self._logged |= {(name, step) for name in fresh}

    def dataset(self, name: str, digest: str, source_path: str, context: str) -> None:
        """Record a file as an input of the job; context: what it served as, such as "rollouts"."""

        def log(client: MlflowClient) -> None:
            from mlflow.entities import Dataset, DatasetInput, InputTag

            # MLflow takes digests of at most 36 characters; the whole one goes with the source.
            source = json.dumps({"uri": source_path, "digest": digest})
            dataset = Dataset(name=name, digest=digest[:36], source_type="local", source=source)
            inputs = [DatasetInput(dataset=dataset, tags=[InputTag("mlflow.data.context", context)])]
            client.log_inputs(self._id, datasets=inputs)

        self._call(log)

    def artifact(self, path: Path) -> None:
        """Copy a file to the artifacts of the run."""
        self._call(lambda client: client.log_artifact(self._id, str(path)))

    def model(self, name: str, path: str, digest: str, metrics: Mapping[str, float], step: int = 0) -> None:
        """Record a checkpoint with its evaluation, once per digest; the weights stay where they are."""

        def log(client: MlflowClient) -> None:
            same = f"source_run_id = '{self._id}' AND tags.`{_DIGEST}` = '{digest}'"
            if client.search_logged_models([self._experiment_id], filter_string=same):
                return
            model = client.create_logged_model(
                self._experiment_id,
                name=re.sub(r"[^A-Za-z0-9_\- ]", "_", name),
                source_run_id=self._id,
                tags={_DIGEST: digest, "agentrl.path": path},
                model_type="policy",
            )
            client.finalize_logged_model(model.model_id, "READY")
            finite = {_metric_name(key): value for key, value in metrics.items() if math.isfinite(value)}
            client.log_batch(self._id, metrics=_metrics(finite, step, model.model_id))

        self._call(log)

    def finish(self, status: str) -> None:
        """Close the run: FINISHED, FAILED or KILLED; tried even after an earlier failure."""
        broken, self.broken = self.broken, self._client is None
        if self.dropped_metrics:
            self._call(lambda client: client.set_tag(self._id, "agentrl.dropped_metrics", self.dropped_metrics))
        self._call(lambda client: client.set_terminated(self._id, status))
        self.broken |= broken

    def _call(self, action: Callable[[MlflowClient], object]) -> None:
        if self.broken or self._client is None:
            return
        try:
            action(self._client)
        except Exception as error:
            self.broken = True
            _warn(self._store, error)


@contextmanager
def job_run(
    store: Store,
    experiment: str,
    *,
    job: str,
    identity: str,
    parent: str | None = None,
    params: Mapping[str, object] | None = None,
) -> Iterator[JobRun]:
    """Run of a job such as "train/grpo/seed0": the one with the same job and identity, or a new one.

    Leaving the block closes it: FINISHED; FAILED on an exception; KILLED on SIGTERM (raised as `Terminated`)
    or an interrupt.
    """
    try:
        run = _open(store, experiment, job, identity, parent, params or {})
    except Exception as error:
        _warn(store, error)
        run = JobRun(store, None, "", "")
    with _sigterm_raises():
        try:
            yield run
        except BaseException as error:
            run.finish("KILLED" if isinstance(error, Terminated | KeyboardInterrupt) else "FAILED")
            raise
        run.finish("FINISHED")


def sync(store: Store, experiment: str, directory: Path) -> int:
    """Upload what the store lacks of the metrics of finished jobs below `directory`; returns their number.

    A finished job is a directory with `metrics.jsonl` and a `manifest.json` that names its `job` and
    `identity`, and maybe its `config`. Raises AgentRLError when the store does not take them.
    """
    logs = sorted(directory.rglob("metrics.jsonl"))
    finished = [path for path in logs if path.with_name("manifest.json").is_file()]
    for path in finished:
        manifest = json.loads(path.with_name("manifest.json").read_text(encoding="utf-8"))
        if missing := {"job", "identity"} - set(manifest):
            raise AgentRLError(f"{path.with_name('manifest.json')} lacks {', '.join(sorted(missing))}")
        job, identity, config = manifest["job"], manifest["identity"], manifest.get("config", {})
        try:
            run = _open(store, experiment, job, identity, None, config)
        except Exception as error:
            raise AgentRLError(f"tracking store {store}: {error}") from error
        for row in metrics_log.read(path):
            run.metrics({name: value for name, value in row.items() if name != "step"}, int(row["step"]))
        run.finish("FINISHED")
        if run.broken:
            raise AgentRLError(f"{path} could not be uploaded to {store}; the reason stands above")
    return len(finished)


def _open(
    store: Store, experiment: str, job: str, identity: str, parent: str | None, params: Mapping[str, object]
) -> JobRun:
    client, experiment_id = _connect(store, experiment)
    wanted = f"tags.`{_JOB}` = '{job}' and tags.`{_INPUTS}` = '{identity}'"
    found = client.search_runs([experiment_id], wanted, order_by=["attributes.start_time DESC"], max_results=1)
    if not found:
        tags = {_JOB: job, _INPUTS: identity} | ({_PARENT: parent} if parent else {})
        run_id = client.create_run(experiment_id, tags=tags, run_name=job).info.run_id
        client.log_batch(run_id, params=_params(params))
        return JobRun(store, client, experiment_id, run_id)
    run = JobRun(store, client, experiment_id, found[0].info.run_id)
    client.update_run(found[0].info.run_id, status="RUNNING")
    if parent:
        client.set_tag(found[0].info.run_id, _PARENT, parent)
    run.recall(client, found[0].data.metrics)
    return run


def _connect(store: Store, experiment: str) -> tuple[MlflowClient, str]:
    if isinstance(store, Path) and not (store / "mlflow.db").is_file():
        # Several jobs that create it at once would race; `prepare` does it under a lock.
        raise FileNotFoundError(f"{store / 'mlflow.db'} does not exist")
    client = _client(store)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        raise LookupError(f"no experiment {experiment!r}")
    return client, str(found.experiment_id)


@cache
def _client(store: Store) -> MlflowClient:
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{(store / 'mlflow.db').resolve()}" if isinstance(store, Path) else store
    return MlflowClient(tracking_uri=uri)


def _warn(store: Store, error: Exception) -> None:
    if str(store) not in _warned:
        _warned.add(str(store))
        reason = " ".join(str(error).split())[:300]
        what = f"warning: MLflow tracking is off ({type(error).__name__}: {reason})."
        advice = "The job goes on; metrics.jsonl has its metrics, and `agentrl track sync` uploads them."
        print(what, advice, file=sys.stderr)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into `Terminated`, so that the run is closed; only the main thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _metrics(values: Mapping[str, float], step: int, model_id: str | None = None) -> list[Metric]:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(name, value, now, step, model_id=model_id) for name, value in values.items()]


def _metric_name(name: str) -> str:
    """A name that MLflow accepts: its alphabet only, and no empty, "." or ".." part."""
    parts = re.sub(r"[^A-Za-z0-9_\-./: ]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:_MAX_NAME] or "_"


def _params(config: Mapping[str, object]) -> list[Param]:
    """Flattened settings under dotted keys, the first fifty, long values cut."""
    from mlflow.entities import Param

    flat: dict[str, object] = {}

    def flatten(prefix: str, value: object) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            flat[_metric_name(prefix)] = value

    flatten("", config)
    return [Param(key, str(value)[:_MAX_VALUE]) for key, value in list(flat.items())[:_MAX_PARAMS]]
