"""`agentrl run`, the Snakemake wrapper, and `agentrl ui`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentbench_rl.cli.common import (
    DEFAULT_EXPERIMENT,
    RESULTS,
    ExperimentOption,
    ResultsOption,
    SetOption,
    noted,
    user_errors,
)

if TYPE_CHECKING:
    from agentbench_rl.config import Json

#: A server that does not end by itself so soon is killed.
_END_SECONDS = 30.0


@user_errors()
def run(
    context: typer.Context,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
    cores: Annotated[str, typer.Option(help="Number of cores, or all.")] = "all",
    recover: Annotated[
        bool, typer.Option("--recover", help="After a crash: unlock, then run unfinished jobs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")] = False,
    profile: Annotated[str, typer.Option(help="A profile of workflows/profiles, or a directory.")] = "default",
    serve: Annotated[
        bool, typer.Option("--serve", help="One server samples for all jobs, so that an engine is started once.")
    ] = False,
) -> None:
    """Run a whole comparison with Snakemake; further arguments go to snakemake."""
    import tempfile

    import yaml

    from agentbench_rl.presets import load_experiment
    from agentbench_rl.types import AgentRLError

    snakefile = Path("Snakefile")
    if not snakefile.exists():
        raise AgentRLError("there is no Snakefile here; run this command in the project's directory")
    resolved = noted(load_experiment(experiment, settings or ())).model_dump(mode="json")
    named = Path("workflows/profiles") / profile
    with tempfile.TemporaryDirectory() as scratch:
        configfile = Path(scratch) / "experiment.yaml"
        configfile.write_text(yaml.safe_dump(resolved | {"results": str(results)}, sort_keys=False), encoding="utf-8")
        base = [sys.executable, "-m", "snakemake", "--configfile", str(configfile), "--cores", cores]
        base += ["--workflow-profile", str(named if named.is_dir() else profile)]
        if recover:
            _call([*base, "--unlock", *context.args])
        extra = ["--rerun-incomplete"] if recover else []
        if resolved["device"] == "cuda" and not any(argument.startswith("--resources") for argument in context.args):
            # Snakemake counts devices but does not hand them out: one job at a time has the machine's GPUs.
            extra += ["--resources", f"gpu={resolved['processes']}"]
        with _server(resolved, Path(scratch), serve and not dry_run) as environment:
            code = _call([*base, *extra, *(["--dry-run"] if dry_run else []), *context.args], environment)
    if code and not recover and any(Path(".snakemake/locks").glob("*")):
        print(
            "agentrl: the directory is locked by a run that goes on, or that was killed; in the second case: "
            "agentrl run --recover",
            file=sys.stderr,
        )
    raise typer.Exit(code)


@contextmanager
def _server(resolved: Json, scratch: Path, wanted: bool) -> Iterator[dict[str, str]]:
    """Run a server meanwhile, and give what tells jobs of it; it loads no policy before the first job does."""
    from agentbench_rl.types import AgentRLError

    if not wanted:
        yield {}
        return
    file, experiment = scratch / "server.json", scratch / "served.json"
    experiment.write_text(json.dumps(resolved), encoding="utf-8")
    command = [sys.executable, "-m", "agentbench_rl", "serve", "--file", str(file), "--experiment", str(experiment)]
    process = subprocess.Popen(command)
    try:
        while not file.exists():
            if process.poll() is not None:
                raise AgentRLError("the server ended before it was ready; what it said stands above")
            time.sleep(0.1)
        yield {"AGENTRL_SERVER": str(file.resolve())}
        if process.poll() is not None:
            print(
                f"agentrl: the server ended before the run (exit code {process.returncode}); finished stages are kept, "
                "run the same command again",
                file=sys.stderr,
            )
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server, also one that hangs."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _call(command: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a command in this process group; an interrupt reaches it too, and its exit code is what counts."""
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            print("agentrl: stopping; finished stages are kept, `agentrl run` goes on from there", file=sys.stderr)


@user_errors()
def ui(
    results: ResultsOption = RESULTS,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
) -> None:
    """Open the MLflow web page of the results."""
    from agentbench_rl.types import AgentRLError

    store = (results / "mlflow.db").resolve()
    if not store.exists():
        raise AgentRLError(f"{store} does not exist; run a comparison first (agentrl run)")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{store}"]
    command += ["--default-artifact-root", (results / "artifacts").resolve().as_uri()]
    raise typer.Exit(_call([*command, "--host", "127.0.0.1", "--port", str(port)]))


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
    app.command()(ui)
