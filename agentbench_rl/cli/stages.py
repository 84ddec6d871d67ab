"""Commands that run one stage, or the online loop of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentbench_rl.cli.common import (
    DEFAULT_EXPERIMENT,
    RESULTS,
    AlgorithmOption,
    ExperimentOption,
    IterationOption,
    ResultsOption,
    SeedOption,
    SetOption,
    led,
    load,
    numbers,
    progress_bars,
    summary_line,
    tracked,
    user_errors,
    with_algorithm,
)

if TYPE_CHECKING:
    from agentbench_rl.config import Experiment, Json
    from agentbench_rl.stages.layout import Layout
    from agentbench_rl.tracking.job import Job

#: File and context of the datasets that the stages of an online run write.
_DATASETS = {"rollout": ("rollouts.parquet", "rollouts"), "advantage": ("advantages.parquet", "advantages")}
_EVALUATIONS = Literal["start-validation", "start-test", "validation", "test"]


@user_errors()
def panel(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Draw the train, validation and test panels and write the games they name."""
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages.panel import panel as stage

    loaded, layout = load(experiment, results, settings)
    with tracked(loaded, layout, "panel", stage_config(loaded, "panel")) as job:
        manifest = stage(loaded, layout.panels)
        _finish("panel", manifest, job, 0)
        _datasets(job, layout.panels, ("train.json", "validation.json", "test.json"), "panel")


@user_errors()
def demos(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Record expert episodes on training tasks."""
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages.demos import demos as stage

    loaded, layout = load(experiment, results, settings)
    with progress_bars() as bar, tracked(loaded, layout, "demos", stage_config(loaded, "demos")) as job:
        _finish("demos", stage(loaded, layout, bar("demos")), job, 0)
        _datasets(job, layout.demos, ("demos.parquet",), "demos")


@user_errors()
def sft(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Clone the demonstrations into the start policy."""
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages.sft import sft as stage

    loaded, layout = load(experiment, results, settings, shared=True)
    with led(loaded), progress_bars() as bar, tracked(loaded, layout, "sft", stage_config(loaded, "sft")) as job:
        manifest = stage(loaded, layout, bar("sft"))
        _finish("sft", manifest, job, loaded.sft.steps)
        job.model("sft", layout.sft / "policy", manifest["outputs"]["policy"], manifest["metrics"], 0)


@user_errors()
def dense_model(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Train the model of dense rewards (RSPO) on episodes of the start policy."""
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages.dense_model import dense_model as stage

    loaded, layout = load(experiment, results, settings, shared=True)
    config = stage_config(loaded, "dense_rollout") | stage_config(loaded, "dense_model")
    with led(loaded), progress_bars() as bar, tracked(loaded, layout, "dense_model", config) as job:
        manifest = stage(loaded, layout, bar("dense model"))
        _finish("dense_model", manifest, job, loaded.dense_model.steps)
        _datasets(job, layout.dense_model / "rollout", ("rollouts.parquet",), "rollouts")
        job.model("dense_model", layout.dense_model / "model", manifest["outputs"]["model"], manifest["metrics"], 0)


@user_errors()
def rollout(
    algorithm: AlgorithmOption,
    seed: SeedOption = 0,
    iteration: IterationOption = 0,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Sample the groups of one iteration."""
    from agentbench_rl.stages.rollout import rollout as stage

    loaded, layout = load(experiment, results, settings)
    loaded = with_algorithm(loaded, algorithm)
    with progress_bars() as bar, _iteration(loaded, layout, "rollout", algorithm, seed, iteration) as job:
        manifest = stage(loaded, layout, algorithm, seed, iteration, bar(f"rollout {iteration}"))
        _finish("rollout", manifest, job, iteration + 1)
        _datasets(job, layout.stage(algorithm, seed, iteration, "rollout"), ("rollouts.parquet",), "rollouts")


@user_errors()
def score(
    algorithm: AlgorithmOption,
    seed: SeedOption = 0,
    iteration: IterationOption = 0,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Compute old and reference log-probs of one iteration's rollouts."""
    from agentbench_rl.stages.score import score as stage

    loaded, layout = load(experiment, results, settings, shared=True)
    loaded = with_algorithm(loaded, algorithm)
    with led(loaded), progress_bars() as bar, _iteration(loaded, layout, "score", algorithm, seed, iteration) as job:
        manifest = stage(loaded, layout, algorithm, seed, iteration, bar(f"score {iteration}"))
        _finish("score", manifest, job, iteration + 1)


@user_errors()
def advantage(
    directory: Annotated[
        Path | None, typer.Argument(help="Any rollouts directory in the contract's format (then --out is needed).")
    ] = None,
    algorithm: AlgorithmOption = "grpo",
    out: Annotated[Path | None, typer.Option(help="Where to write the advantages of DIRECTORY.")] = None,
    seed: SeedOption = 0,
    iteration: IterationOption = 0,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Compute the advantages of one iteration, or of any rollouts directory."""
    from agentbench_rl.cli.common import print_json
    from agentbench_rl.presets import add_algorithm, load_experiment
    from agentbench_rl.stages.advantage import advantage as stage
    from agentbench_rl.stages.advantage import write_advantages
    from agentbench_rl.types import AgentRLError

    if directory is not None:
        if out is None:
            raise AgentRLError("advantage DIRECTORY needs --out FILE: where the advantages go")
        methods = add_algorithm(load_experiment(experiment, settings or ()), algorithm).algorithms
        print_json(write_advantages(directory, methods[algorithm], out, iteration=iteration))
        return
    loaded, layout = load(experiment, results, settings)
    loaded = with_algorithm(loaded, algorithm)
    with _iteration(loaded, layout, "advantage", algorithm, seed, iteration) as job:
        _finish("advantage", stage(loaded, layout, algorithm, seed, iteration), job, iteration + 1)
        where = layout.stage(algorithm, seed, iteration, "advantage")
        _datasets(job, where, ("advantages.parquet",), "advantages")


@user_errors()
def update(
    algorithm: AlgorithmOption,
    seed: SeedOption = 0,
    iteration: IterationOption = 0,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Train on one iteration's advantages and write the next policy."""
    from agentbench_rl.stages.update import update as stage

    loaded, layout = load(experiment, results, settings, shared=True)
    loaded = with_algorithm(loaded, algorithm)
    with led(loaded), progress_bars() as bar, _iteration(loaded, layout, "update", algorithm, seed, iteration) as job:
        manifest = stage(loaded, layout, algorithm, seed, iteration, bar(f"update {iteration}"))
        _finish("update", manifest, job, iteration + 1)
        name = f"{algorithm}-seed{seed}-{iteration + 1}"
        where = layout.stage(algorithm, seed, iteration, "update") / "policy"
        job.model(name, where, manifest["outputs"]["policy"], {}, iteration + 1)


@user_errors()
def iterate(
    algorithm: AlgorithmOption,
    seed: SeedOption = 0,
    iteration: IterationOption = 0,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Run one iteration of a method that updates in rounds (3SPO, RSPO); it resumes inside the iteration."""
    from agentbench_rl.stages.schedules import iterate as stage

    loaded, layout = load(experiment, results, settings, shared=True)
    loaded = with_algorithm(loaded, algorithm)
    config = _run_config(loaded, algorithm, seed, range(iteration, iteration + 1))
    with (
        led(loaded),
        progress_bars() as bar,
        tracked(loaded, layout, f"iterate/{algorithm}/seed{seed}/{iteration}", config) as job,
    ):
        manifests = stage(loaded, layout, algorithm, seed, iteration, bar(f"iterate {iteration}"))
        for name, manifest in manifests.items():
            _finish(name, manifest, job, iteration + 1)
            if name in _DATASETS:
                file, context = _DATASETS[name]
                _datasets(job, layout.stage(algorithm, seed, iteration, name), (file,), context)
        where = layout.stage(algorithm, seed, iteration, "update") / "policy"
        digest = manifests["update"]["outputs"]["policy"]
        job.model(f"{algorithm}-seed{seed}-{iteration + 1}", where, digest, {}, iteration + 1)


@user_errors()
def train(
    algorithm: AlgorithmOption,
    seed: SeedOption = 0,
    first: Annotated[int, typer.Option(min=0, help="First iteration of the segment.")] = 0,
    last: Annotated[int | None, typer.Option(help="Last iteration; default: the experiment's last.")] = None,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Run the online loop of a method and seed; stages that are finished are kept, so it resumes by itself."""
    from agentbench_rl.stages.prerequisites import prepare_start
    from agentbench_rl.stages.train import train as loop

    loaded, layout = load(experiment, results, settings, shared=True)
    loaded = with_algorithm(loaded, algorithm)
    iterations = _segment(first, last, loaded.training.iterations)
    name = f"train/{algorithm}/seed{seed}/{iterations[0]}-{iterations[-1]}"
    with (
        led(loaded),
        progress_bars() as bar,
        tracked(loaded, layout, name, _run_config(loaded, algorithm, seed, iterations)) as job,
    ):
        prepare_start(loaded, layout, bar, algorithm)
        total = bar(f"{algorithm} seed {seed}")

        def observe(stage: str, iteration: int, manifest: Json) -> None:
            _finish(stage, manifest, job, iteration + 1, f"{algorithm} seed {seed} iteration {iteration} ")
            if stage == "update":
                total(iteration + 1 - first, len(iterations))
            if stage in _DATASETS:
                file, context = _DATASETS[stage]
                where = layout.stage(algorithm, seed, iteration, stage)
                _datasets(job, where, (file,), context, f"iteration{iteration:03d}/")
            if stage == "validation":
                policy = layout.stage(algorithm, seed, iteration, "update") / "policy"
                digest = manifest["identity"]["inputs"]["policy"]
                checkpoint = f"{algorithm}-seed{seed}-{iteration + 1}"
                job.model(checkpoint, policy, digest, manifest["metrics"], iteration + 1)

        loop(loaded, layout, algorithm, seed, iterations, lambda stage, _: bar(f"  {stage}"), observe)


@user_errors()
def evaluate(
    what: Annotated[_EVALUATIONS, typer.Argument(help="Which policy on which panel.")] = "test",
    algorithm: AlgorithmOption = "",
    seed: SeedOption = 0,
    iteration: IterationOption = 0,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    results: ResultsOption = RESULTS,
    settings: SetOption = None,
) -> None:
    """Play a panel with the start policy (start-…), an iteration's policy (validation) or the last one (test)."""
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages import evaluate as stage
    from agentbench_rl.types import AgentRLError

    loaded, layout = load(experiment, results, settings)
    if not what.startswith("start") and not algorithm:
        raise AgentRLError(f"eval {what} needs --algorithm NAME: whose policy is it?")
    if algorithm:
        loaded = with_algorithm(loaded, algorithm)
    name = f"eval/{what}" if what.startswith("start") else f"eval/{what}/{algorithm}/seed{seed}/{iteration}"
    with progress_bars() as bar, tracked(loaded, layout, name, stage_config(loaded, "evaluate")) as job:
        progress = bar(name)
        if what.startswith("start"):
            manifest = stage.evaluate_start(loaded, layout, what.removeprefix("start-"), progress)
        elif what == "validation":
            manifest = stage.evaluate_validation(loaded, layout, algorithm, seed, iteration, progress)
        else:
            manifest = stage.evaluate_test(loaded, layout, algorithm, seed, progress)
        panel_name = what.removeprefix("start-")
        _finish(panel_name, manifest, job, manifest["identity"]["seeds"]["version"])
        _datasets(job, layout.panels, (f"{panel_name}.json",), "panel")


@user_errors()
def compare(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Write the tables and figures of the comparison and print the main table."""
    from agentbench_rl.cli.tables import print_comparison
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages.compare import compare as stage

    loaded, layout = load(experiment, results, settings)
    with tracked(loaded, layout, "compare", stage_config(loaded, "compare")) as job:
        _finish("compare", stage(loaded, layout), job, 0)
        print_comparison(layout.tables / "summary.csv")
        for path in sorted(layout.tables.glob("*.csv")):
            job.artifact(path)


@user_errors()
def report(
    experiment: ExperimentOption = DEFAULT_EXPERIMENT, results: ResultsOption = RESULTS, settings: SetOption = None
) -> None:
    """Write the HTML report of the comparison."""
    from agentbench_rl.config import stage_config
    from agentbench_rl.stages.report import report as stage

    loaded, layout = load(experiment, results, settings)
    with tracked(loaded, layout, "report", stage_config(loaded, "report")) as job:
        _finish("report", stage(loaded, layout), job, 0)
        job.artifact(layout.report / "report.html")
    print(f"report: {layout.report / 'report.html'}")


def _iteration(
    loaded: Experiment, layout: Layout, stage: str, algorithm: str, seed: int, iteration: int
) -> AbstractContextManager[Job]:
    from agentbench_rl.config import stage_config
    from agentbench_rl.types import AgentRLError

    if not loaded.algorithms[algorithm].has_stages:
        raise AgentRLError(
            f"algorithm {algorithm} samples and updates in rounds, and an iteration is run as a whole; "
            f"use agentrl iterate --algorithm {algorithm} --seed {seed} --iteration {iteration} (or agentrl train)"
        )
    config = stage_config(loaded, stage, algorithm) | {"seed": seed, "iteration": iteration}
    return tracked(loaded, layout, f"{stage}/{algorithm}/seed{seed}/{iteration}", config)


def _run_config(loaded: Experiment, algorithm: str, seed: int, iterations: range) -> Json:
    from agentbench_rl.config import iteration_config, stage_config

    parts: Json = {"algorithm": algorithm, "seed": seed, "first": iterations[0], "last": iterations[-1]}
    return parts | iteration_config(loaded, algorithm) | stage_config(loaded, "evaluate", algorithm)


def _finish(stage: str, manifest: Json, job: Job, step: int, prefix: str = "") -> None:
    typer.echo(prefix + summary_line(stage, manifest), err=True)
    if manifest["metrics"].get("entropies_are_lower_bounds"):
        typer.echo(
            f"{prefix}{stage}: the sampler tells only its most likely tokens: entropies are lower bounds, with one bin "
            "for all other tokens",
            err=True,
        )
    job.metrics(numbers(stage, manifest), step)


def _segment(first: int, last: int | None, iterations: int) -> range:
    """The iterations `first` to `last` (None: the experiment's last); raises AgentRLError when there are none such."""
    from agentbench_rl.types import AgentRLError

    if last is not None and last >= iterations:
        raise AgentRLError(
            f"train: --last {last} is beyond the experiment, whose {iterations} iterations end with {iterations - 1}; "
            "raise training.iterations to train longer"
        )
    segment = range(first, iterations if last is None else last + 1)
    if not segment:
        until = f"the experiment has {iterations}" if last is None else f"--last {last} is before it"
        raise AgentRLError(f"train: nothing to do from iteration --first {first} on: {until}")
    return segment


def _datasets(job: Job, directory: Path, names: tuple[str, ...], context: str, prefix: str = "") -> None:
    from agentbench_rl.stages.files import sha256

    for name in names:
        job.dataset(f"{prefix}{directory.name}/{name}", sha256(directory / name), directory / name, context)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (panel, demos, sft, dense_model, rollout, score, advantage, update, iterate, train, compare, report):
        app.command()(command)
    app.command("eval")(evaluate)
