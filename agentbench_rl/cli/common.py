"""What commands share: options, loading, progress bars, errors that speak to the user, and the tracking of a job."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentbench_rl.types import AgentRLError, InfrastructureError, Progress

if TYPE_CHECKING:
    from agentbench_rl.config import Experiment, Json
    from agentbench_rl.stages.layout import Layout
    from agentbench_rl.tracking.job import Job

ExperimentOption = Annotated[
    str, typer.Option("--experiment", "-e", help="An experiment of configs/experiments, or a YAML file.")
]
ResultsOption = Annotated[Path, typer.Option("--results", help="Directory of all results.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Change a setting: section.key=value; repeatable.")
]
AlgorithmOption = Annotated[str, typer.Option("--algorithm", "-a", help="A method of the experiment, or a preset.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Training seed.")]
IterationOption = Annotated[int, typer.Option("--iteration", "-i", min=0, help="Iteration, from 0.")]
DEFAULT_EXPERIMENT = "quickstart"
RESULTS = Path("results")
_INTERRUPTED = 130
_FAULT = 3
_ROOM = "Nothing that was finished is lost; make room and run the same command again."
_ACCESS = "Nothing that was finished is lost; allow the access, or choose another place, and run the command again."
_PLACE = "Another path is needed here; check what the command's arguments and options name."
#: What to do about the errors of the operating system that a user can act on.
_REMEDIES: dict[int | None, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EACCES, errno.EROFS), _ACCESS),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG), _PLACE),
}
#: Without a terminal a progress line is written at most so often (seconds).
_LINE_EVERY = 20.0


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn what a user can act on into a message and an exit code; other exceptions keep their traceback."""
    try:
        yield
    except AgentRLError as error:
        _fail(str(error), 1)
    except InfrastructureError as error:
        _fail(f"{error} (an infrastructure fault: the same command may succeed when run again)", _FAULT)
    except KeyboardInterrupt:
        _fail("interrupted. Finished stages are kept; the same command goes on from there.", _INTERRUPTED)
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        path = error.filename2 or error.filename
        _fail(f"{error.strerror}{f' ({path})' if path else ''}. {_REMEDIES[error.errno]}", 1)


def _fail(message: str, code: int) -> None:
    from agentbench_rl.training.world import launched

    world = launched()
    print(f"agentrl{'' if world.leads else f' (process {world.rank})'}: {message}", file=sys.stderr)
    raise typer.Exit(code)


def load(
    experiment: str, results: Path, overrides: list[str] | None, *, shared: bool = False
) -> tuple[Experiment, Layout]:
    """Load an experiment and the layout of its results; refuses a directory that holds another experiment.

    shared: the command is one that several processes of torchrun run together.
    """
    from agentbench_rl.presets import load_experiment
    from agentbench_rl.stages.layout import Layout
    from agentbench_rl.stages.preflight import check_experiment
    from agentbench_rl.stages.record import record_experiment
    from agentbench_rl.training.world import launched

    world = launched()
    if world.size > 1 and not shared:
        raise AgentRLError(
            "this command runs in one process; torchrun is for agentrl sft, dense-model, score, update, iterate and "
            "train"
        )
    loaded = load_experiment(experiment, overrides or ())
    check_experiment(loaded)
    layout = Layout(results / loaded.name)
    if world.leads:
        record_experiment(loaded, layout)
    return loaded, layout


@contextmanager
def led(experiment: Experiment) -> Iterator[None]:
    """Run a command in the first process of torchrun's; in the others, take part in what it shares, then end."""
    from agentbench_rl.training.world import follow, open_world

    with open_world(experiment.device) as world:
        if not world.leads:
            follow()
            raise typer.Exit
        yield


def with_algorithm(experiment: Experiment, algorithm: str) -> Experiment:
    """The experiment with `algorithm` among its methods, taken from the presets when it is not one of them.

    Raises AgentRLError for one that needs what the experiment does not offer.
    """
    from agentbench_rl.presets import add_algorithm
    from agentbench_rl.stages.preflight import check_experiment
    from agentbench_rl.training.world import launched

    whole = add_algorithm(experiment, algorithm)
    check_experiment(whole)
    if launched().leads:
        noted(whole.model_copy(update={"algorithms": {algorithm: whole.algorithms[algorithm]}}))
    return whole


def noted(experiment: Experiment) -> Experiment:
    """Say on standard error what of an experiment is allowed, and hardly meant; gives the experiment back."""
    from agentbench_rl.stages.preflight import notes

    for note in notes(experiment):
        print(f"note: {note}", file=sys.stderr)
    return experiment


@contextmanager
def progress_bars() -> Iterator[Callable[[str], Progress]]:
    """Give callbacks that draw one bar with an ETA per name, or write sparse lines where there is no terminal."""
    if not sys.stderr.isatty():
        yield _lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=Console(stderr=True)) as bars:

        def bar(name: str) -> Progress:
            # A stage that is finished already tells nothing: its bar stays out of sight.
            task = bars.add_task(name, total=None, visible=False)

            def report(done: int, total: int) -> None:
                bars.update(task, completed=done, total=total, visible=done < total)

            return report

        yield bar


def _lines(name: str) -> Progress:
    started = said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < _LINE_EVERY and done < total:
            return
        said = now
        remaining = (now - started) / max(done, 1) * (total - done)
        print(
            f"{name}: {done}/{total}, {now - started:.0f} s, about {remaining:.0f} s to go", file=sys.stderr, flush=True
        )

    return report


@contextmanager
def tracked(experiment: Experiment, layout: Layout, job: str, config: Json) -> Iterator[Job]:
    """Open the log of a job below `jobs/`, and its MLflow run when the experiment is tracked."""
    from agentbench_rl.config import config_hash
    from agentbench_rl.stages.record import parent_run
    from agentbench_rl.tracking.job import open_job

    with open_job(
        layout.root / "jobs" / job.replace("/", "."),
        layout.root.parent if experiment.tracking.enabled else None,
        experiment.name,
        job=job,
        identity=config_hash(config),
        config=config,
        parent=parent_run(layout),
    ) as opened:
        yield opened


def summary_line(stage: str, manifest: Json) -> str:
    """One line about a finished stage: its counts and metrics."""
    counts = ", ".join(f"{name} {value}" for name, value in manifest["counts"].items())
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in manifest["metrics"].items())
    return f"{stage}: {'; '.join(part for part in (counts, metrics) if part) or 'done'}"


def numbers(stage: str, manifest: Json) -> dict[str, float]:
    """A manifest's metrics and ledger under names for tracking."""
    metrics = {f"{stage}/{name}": float(value) for name, value in manifest["metrics"].items()}
    return metrics | {f"cost/{stage}/{name}": float(value) for name, value in manifest["ledger"].items()}


def print_json(value: object) -> None:
    """Write a value as JSON to standard output."""
    print(json.dumps(value, indent=2, sort_keys=True, default=str))
