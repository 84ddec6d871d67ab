"""Stage `compare`: from evaluations and manifests to the tables (CSV) and figures (PNG, SVG) of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from agentbench_rl.config import Experiment, Json, iteration_config, stage_config, validated_iterations
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.evaluation.equal_cost import equal_cost_table
from agentbench_rl.evaluation.exploration import EXPLORATION_COLUMNS, exploration_curves, exploration_table
from agentbench_rl.evaluation.plots import allocations, bars, cost_matched, exploration, learning_curves
from agentbench_rl.evaluation.statistics import bootstrap_interval, task_means
from agentbench_rl.evaluation.tables import (
    START,
    MethodResult,
    cost_table,
    curve_table,
    episode_metrics,
    matched_table,
    paired_table,
    summary_table,
    write_csv,
)
from agentbench_rl.evaluation.utility import utility_table, with_counts
from agentbench_rl.stages.exploration import draw_trees, explored_runs, forking
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, merge_ledgers, require, run_stage
from agentbench_rl.stages.score import needs_scores
from agentbench_rl.types import episode_schema, rollout_schema

_TRAINING_STAGES = ("rollout", "score", "advantage", "update")


def compare(experiment: Experiment, layout: Layout) -> Json:
    """Write the tables and figures of a comparison; the table shows every method's last policy."""
    settings = experiment.evaluation
    level, resamples, seed = settings.level, settings.resamples, settings.seed

    def body(scratch: Path) -> StageReport:
        results = list(method_results(experiment, layout))
        summary = summary_table(results, level=level, resamples=resamples, seed=seed)
        curves = curve_table(results, level=level, resamples=resamples, seed=seed)
        write_csv(summary, scratch / "summary.csv")
        write_csv(paired_table(results, level=level, resamples=resamples, seed=seed), scratch / "paired.csv")
        write_csv(curves, scratch / "curves.csv")
        write_csv(matched_table(curves), scratch / "matched.csv")
        at_equal_cost = equal_cost_table(results, level=level, resamples=resamples, seed=seed)
        write_csv(at_equal_cost, scratch / "at_equal_cost.csv")
        write_csv(cost_table(results), scratch / "cost.csv")
        write_csv(utility_table(results), scratch / "utility.csv")
        learning_curves(curves, "update", scratch / "curves_updates")
        learning_curves(curves, "sampled_tokens", scratch / "curves_tokens")
        cost_matched(curves, scratch / "curves_matched")
        bars(summary, scratch / "success")
        return StageReport(counts={"runs": len(results)}, metrics=_explore(experiment, layout, scratch))

    return run_stage(
        "compare",
        layout.tables,
        config=stage_config(experiment, "compare"),
        inputs=dict(_inputs(experiment, layout)),
        body=body,
    )


def _explore(experiment: Experiment, layout: Layout, scratch: Path) -> dict[str, float]:
    """Write tables and figures of what was explored, and a tree per method that makes trees; return numbers by run."""
    curves = exploration_curves(explored_runs(experiment, layout))
    write_csv(curves, scratch / "exploration_curves.csv")
    table = exploration_table(curves)
    write_csv(table, scratch / "exploration.csv")
    exploration(curves, "distinct_states", "sampled_tokens", scratch / "exploration_states")
    if "mean_score" in curves:
        exploration(curves, "mean_score", "iteration", scratch / "exploration_scores")
        allocations(curves, scratch / "exploration_allocations")
    draw_trees(experiment, layout, scratch)
    return {
        f"{row['method']}/seed{row['seed']}/{name}": float(row[name])
        for row in table.to_dict("records")
        for name in EXPLORATION_COLUMNS[2:]
    }


def method_results(experiment: Experiment, layout: Layout) -> Iterator[MethodResult]:
    """Yield the start policy's result, then one per (method, seed)."""
    yield MethodResult(
        START, None, test_episodes(experiment, layout.start_evaluation("test")), curve=_curve(experiment, layout)
    )
    for algorithm in experiment.algorithms:
        for seed in experiment.seeds:
            ledger = training_ledger(experiment, layout, algorithm, seed, experiment.training.iterations)
            yield MethodResult(
                algorithm,
                seed,
                test_episodes(experiment, layout.test(algorithm, seed)),
                sampled_tokens=round(ledger["sampled_tokens"]),
                updates=experiment.training.iterations,
                ledger=ledger,
                curve=_curve(experiment, layout, algorithm, seed),
            )


def test_episodes(experiment: Experiment, directory: Path) -> pd.DataFrame:
    """Read the episodes of an evaluation, with what was counted of their responses."""
    require(directory, "evaluate", stage_config(experiment, "evaluate"))
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    return with_counts(episodes, read_frame(directory / "rollouts.parquet", rollout_schema()))


def training_ledger(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iterations: int
) -> dict[str, float]:
    """Sum the cost ledgers of a run's stages over its first `iterations` iterations; evaluation is not training.

    A model of dense rewards costs every run that uses it what it cost, though they share it.
    Raises AgentRLError when a stage is missing or was made under another configuration.
    """
    stages = [stage for stage in _TRAINING_STAGES if stage != "score" or needs_scores(experiment, algorithm)]
    configs = {stage: stage_config(experiment, stage, algorithm) for stage in stages}
    needed = [(iteration, stage) for iteration in range(iterations) for stage in stages]
    schedule = experiment.algorithms[algorithm].schedule
    if isinstance(schedule, RewardSwap):
        configs["swap"] = iteration_config(experiment, algorithm)
        needed += [(iteration, "swap") for iteration in range(0, iterations, schedule.period)]
    manifests = [
        require(layout.stage(algorithm, seed, iteration, stage), stage, configs[stage]) for iteration, stage in needed
    ]
    if iterations and experiment.algorithms[algorithm].needs_dense_model:
        manifests.append(require(layout.dense_model, "dense_model", stage_config(experiment, "dense_model")))
    return merge_ledgers([manifest["ledger"] for manifest in manifests])


def _curve(experiment: Experiment, layout: Layout, algorithm: str | None = None, seed: int = 0) -> pd.DataFrame:
    points = [(0, layout.start_evaluation("validation"))]
    if algorithm is not None:
        points += [
            (iteration + 1, layout.stage(algorithm, seed, iteration, "validation"))
            for iteration in validated_iterations(experiment)
        ]
    settings = experiment.evaluation
    rows = []
    for update, directory in points:
        require(directory, "evaluate", stage_config(experiment, "evaluate"))
        episodes = read_frame(directory / "episodes.parquet", episode_schema())
        success = task_means(episodes["task_id"].tolist(), episode_metrics(episodes)["success"])
        interval = bootstrap_interval(
            list(success.values()), level=settings.level, resamples=settings.resamples, seed=settings.seed
        )
        spent = training_ledger(experiment, layout, algorithm, seed, update) if algorithm and update else {}
        costs = spent.get("episodes", 0.0), spent.get("sampled_tokens", 0.0)
        numbers = interval.mean, interval.low, interval.high
        rows.append((update, *costs, "validation", "success", *numbers, len(episodes), success))
    columns = ["update", "played_episodes", "sampled_tokens", "split", "metric", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "episodes", "by_task"])


def _inputs(experiment: Experiment, layout: Layout) -> Iterator[tuple[str, Path]]:
    for panel in ("validation", "test"):
        yield f"sft/{panel}", layout.start_evaluation(panel) / "outputs.json"
    for algorithm in experiment.algorithms:
        for seed in experiment.seeds:
            yield f"{algorithm}/{seed}/test", layout.test(algorithm, seed) / "outputs.json"
            for iteration in validated_iterations(experiment):
                validation = layout.stage(algorithm, seed, iteration, "validation")
                yield f"{algorithm}/{seed}/{iteration}/validation", validation / "outputs.json"
            for iteration in range(experiment.training.iterations):
                sampled = layout.stage(algorithm, seed, iteration, "rollout")
                yield f"{algorithm}/{seed}/{iteration}/rollout", sampled / "outputs.json"
    for algorithm in forking(experiment):
        last = layout.stage(algorithm, experiment.seeds[0], experiment.training.iterations - 1, "advantage")
        yield f"{algorithm}/advantage", last / "outputs.json"
