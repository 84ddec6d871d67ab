"""Commands around the MLflow store: the parent run of an invocation, and uploading what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from agentbench_rl.cli.common import (
    DEFAULT_EXPERIMENT,
    RESULTS,
    ExperimentOption,
    ResultsOption,
    SetOption,
    load,
    user_errors,
)

app = typer.Typer(help="The MLflow store of the results.", no_args_is_help=True)


@app.command()
@user_errors()
def start(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Prepare the store and start the parent run whose children the following jobs are."""
    from agentbench_rl.stages.record import write_parent_run
    from agentbench_rl.tracking.mlflow import prepare, start_parent

    loaded, layout = load(experiment, results, settings)
    if not loaded.tracking.enabled:
        return
    prepare(results, loaded.name, results / ".mlflow.lock")
    run_id = start_parent(results, loaded.name, loaded.model_dump(mode="json"), {"agentrl.job": "comparison"})
    if run_id is not None:
        write_parent_run(layout, run_id)


@app.command()
@user_errors()
def finish(
    status: Annotated[str, typer.Option(help="FINISHED, FAILED or KILLED.")] = "FINISHED",
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Attach tables, figures and the report to the parent run and close it."""
    from agentbench_rl.stages.record import parent_run
    from agentbench_rl.tracking.mlflow import finish_parent

    loaded, layout = load(experiment, results, settings)
    if loaded.tracking.enabled:
        files = [path for directory in (layout.tables, layout.report) for path in sorted(directory.glob("*.*"))]
        artifacts = [path for path in files if path.suffix in {".csv", ".png", ".svg", ".html"}]
        finish_parent(results, parent_run(layout), artifacts, status)


@app.command()
@user_errors()
def sync(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Upload metrics that the store lacks, such as those of jobs that ran without it."""
    from agentbench_rl.tracking.mlflow import prepare
    from agentbench_rl.tracking.mlflow import sync as upload

    loaded, layout = load(experiment, results, settings)
    prepare(results, loaded.name, results / ".mlflow.lock")
    print(f"{upload(results, loaded.name, layout.root / 'jobs')} jobs are complete in {results / 'mlflow.db'}")
