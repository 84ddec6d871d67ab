"""The tables of a comparison, computed from the test episodes of each (method, seed).

A metric is averaged over the episodes of a task first and over tasks second: the means are over trajectories,
never over turns, so a long episode weighs as much as a short one. Infrastructure endings carry no success:
they are left out of every metric, and counted as a metric of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from agentbench_rl.evaluation.statistics import (
    OVER_SEEDS,
    OVER_TASKS,
    RESAMPLES,
    Interval,
    across_seeds,
    bootstrap_interval,
    paired_across_seeds,
    task_means,
)
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS, AgentRLError, Ending

#: Name of the start policy, which all methods of a comparison share.
START = "sft"
#: Levels of success whose price stands in the cost table.
LEVELS = (0.25, 0.5, 0.75, 0.9)
SUMMARY_COLUMNS = [
    *("method", "metric", "mean", "low", "high", "interval_over"),
    *("episodes", "seeds", "sampled_tokens", "updates"),
]
_TRUNCATED = (Ending.TRUNCATED_TURNS, Ending.TRUNCATED_TOKENS)
_NO_INTERVAL = Interval(np.nan, np.nan, np.nan)

TaskValues = dict[int, dict[str, float]]


@dataclass(frozen=True)
class MethodResult:
    """What one training run of a method led to.

    episodes: test episodes of the last policy: columns of `episodes.parquet`, and those of `utility.with_counts`.
    sampled_tokens, updates, ledger: cost of the whole training. curve: columns update, played_episodes and
    sampled_tokens (in training until then), split, metric, mean, low, high, episodes, by_task (task id → mean). The
    start policy is the method "sft" with seed None and no cost.
    """

    method: str
    seed: int | None
    episodes: pd.DataFrame
    sampled_tokens: int = 0
    updates: int = 0
    ledger: Mapping[str, float] | None = None
    curve: pd.DataFrame | None = None


def episode_metrics(episodes: pd.DataFrame) -> dict[str, pd.Series]:
    """Metric → value of each episode, NaN where the episode does not enter the metric.

    `pass_at_k`, where every task was played k > 1 times: whether any of the task's episodes succeeded. A task enters it
    when all k have a score, since fewer tries succeed less often.
    """
    infrastructure = episodes["ending"].isin(list(INFRASTRUCTURE_ENDINGS))
    scored = ~infrastructure
    success = _numbers(episodes["success"]).where(scored)
    if success[scored].isna().any():
        broken = episodes.loc[scored & success.isna(), "episode_id"].iloc[0]
        raise AgentRLError(f"episode {broken!r} has no `success`, but its ending is no infrastructure fault")
    metrics = {"success": success}
    tasks = success.groupby(episodes["task_id"])
    samples = tasks.transform("size")
    if samples.min() == samples.max() > 1:
        metrics[f"pass_at_{samples.max()}"] = tasks.transform("max").where(tasks.transform("count") == samples)
    for task_type in sorted(set(episodes["task_type"])):
        metrics[f"success/{task_type}"] = success.where(episodes["task_type"] == task_type)
    if "score" in episodes and episodes["score"].notna().any():
        metrics["score"] = _numbers(episodes["score"]).where(scored)
    length = _numbers(episodes["length"]).where(scored)
    metrics["episode_length"] = length
    if "invalid_turns" in episodes:
        responses = _numbers(episodes["calls"]) if "calls" in episodes else length
        metrics["invalid_turn_rate"] = (_numbers(episodes["invalid_turns"]) / responses).where(scored)
    truncated = episodes["ending"].isin(list(_TRUNCATED))
    metrics["ending/truncated"] = truncated.astype(float).where(scored)
    metrics["ending/infrastructure"] = infrastructure.astype(float)
    return metrics


def summary_table(
    results: Sequence[MethodResult], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One row per (method, metric), the start policy first; columns SUMMARY_COLUMNS.

    episodes: those that enter the metric. seeds: training seeds, 0 for the start policy. sampled_tokens,
    updates: mean cost of one training run. `success_minus_sft` is paired over tasks.
    """
    groups = grouped(results)
    rows = []
    for method, runs in groups.items():
        seeds = sum(run.seed is not None for run in runs)
        tokens = round(sum(run.sampled_tokens for run in runs) / len(runs))
        updates = round(sum(run.updates for run in runs) / len(runs))
        values = [episode_metrics(run.episodes) for run in runs]
        intervals: dict[str, tuple[Interval, int]] = {}
        for metric in values[0]:
            by_seed = _by_seed(runs, metric)
            interval = _NO_INTERVAL
            if all(by_seed.values()):
                interval = across_seeds(by_seed, level=level, resamples=resamples, seed=seed)
            intervals[metric] = interval, sum(int(metrics[metric].notna().sum()) for metrics in values)
        if method != START and START in groups:
            difference = _difference(runs, groups[START], level, resamples, seed)[0]
            intervals["success_minus_sft"] = difference, intervals["success"][1]
        for metric, (interval, episodes) in intervals.items():
            numbers = interval.mean, interval.low, interval.high, interval.over
            rows.append((method, metric, *numbers, episodes, seeds, tokens, updates))
    return pd.DataFrame(rows, columns=SUMMARY_COLUMNS)


def paired_table(
    results: Sequence[MethodResult], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """Success of `method` minus success of `baseline` for all pairs, over the tasks scored for both."""
    rows = []
    for (baseline, base_runs), (method, runs) in combinations(grouped(results).items(), 2):
        interval, tasks, unscored = _difference(runs, base_runs, level, resamples, seed)
        numbers = interval.mean, interval.low, interval.high, interval.over
        rows.append((method, baseline, *numbers, tasks, unscored))
    columns = ["method", "baseline", "mean", "low", "high", "interval_over", "tasks", "tasks_without_score"]
    return pd.DataFrame(rows, columns=columns)


def cost_table(results: Sequence[MethodResult], levels: Sequence[float] = LEVELS) -> pd.DataFrame:
    """One row per training run: its ledger, and its cost until validation success reached each level.

    A level that was not reached is empty. Columns of whole numbers are integers; seconds are not.
    """
    runs = in_order(results)
    keys = ["method", "seed", "updates", "sampled_tokens"]
    rows = [dict(run.ledger or {}) | {key: getattr(run, key) for key in keys} for run in runs]
    frame = pd.DataFrame(rows, columns=keys + sorted(set().union(*rows) - set(keys)))
    curves = [run.curve for run in runs]
    if any(curve is not None for curve in curves):
        for threshold in levels:
            reached = [_reached(curve, threshold) for curve in curves]
            for index, key in enumerate(("updates", "sampled_tokens")):
                frame[f"{key}_to_{round(100 * threshold)}"] = [point[index] for point in reached]
    for key in frame.columns.drop("method"):
        numbers = frame[key].astype(float)
        whole = bool((numbers.dropna() % 1 == 0).all()) and not key.endswith("seconds")
        frame[key] = numbers.astype("Int64") if whole else numbers
    return frame


def curve_table(
    results: Sequence[MethodResult],
    *,
    metric: str = "success",
    split: str = "validation",
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """Learning curves: method, update, played_episodes, sampled_tokens, mean, low, high, interval_over, seeds.

    One seed: the intervals of its evaluations, over tasks. Several: mean and interval over the seeds' means,
    at the updates that every seed of the method has.
    """
    rows = []
    for method, runs in grouped(results).items():
        curves = [run.curve for run in runs if run.curve is not None]
        points = [curve[(curve["metric"] == metric) & (curve["split"] == split)] for curve in curves]
        if not points:
            continue
        for update, group in pd.concat(points).groupby("update", sort=True):
            if len(group) < len(points):
                continue
            mean, low, high, over = *group[["mean", "low", "high"]].iloc[0], OVER_TASKS
            if len(points) > 1:
                interval = bootstrap_interval(
                    group["mean"], level=level, resamples=resamples, seed=seed, over=OVER_SEEDS
                )
                mean, low, high, over = interval.mean, interval.low, interval.high, interval.over
            costs = group["played_episodes"].mean(), group["sampled_tokens"].mean()
            rows.append((method, update, *costs, mean, low, high, over, len(points)))
    columns = ["method", "update", "played_episodes", "sampled_tokens", "mean", "low", "high", "interval_over", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def matched_table(curves: pd.DataFrame, cost: str = "sampled_tokens") -> pd.DataFrame:
    """Each method at the largest cost that all of them paid: its last evaluation that was not dearer.

    curves: a `curve_table`. Columns: those of `curves`, and `budget`. The start policy costs nothing.
    """
    trained = curves[curves["method"] != START]
    budget = float(trained.groupby("method")[cost].max().min())
    within = curves[curves[cost] <= budget].groupby("method", sort=False).tail(1)
    return within.assign(budget=budget).reset_index(drop=True)


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table, the same bytes for the same numbers: six decimals, LF, no index, no negative zero."""
    settled = frame.copy()
    for key in settled.select_dtypes("float"):
        settled[key] = settled[key].round(6) + 0.0
    path.parent.mkdir(parents=True, exist_ok=True)
    text = settled.to_csv(index=False, float_format="%.6f", lineterminator="\n")
    path.write_text(text, encoding="utf-8", newline="\n")


def in_order(results: Sequence[MethodResult]) -> list[MethodResult]:
    """The start policy's result, then those of each method; raises AgentRLError where they cannot be compared."""
    return [run for runs in grouped(results).values() for run in runs]


def grouped(results: Sequence[MethodResult]) -> dict[str, list[MethodResult]]:
    """Runs per method, the start policy first; raises AgentRLError where they cannot be compared."""
    groups: dict[str, list[MethodResult]] = {}
    for result in sorted(results, key=lambda result: result.method != START):
        groups.setdefault(result.method, []).append(result)
    if not groups:
        raise AgentRLError("a comparison needs at least one result")
    panel = set(results[0].episodes["task_id"])
    for method, runs in groups.items():
        seeds = [run.seed for run in runs]
        if len(set(seeds)) < len(seeds) or (None in seeds) != (method == START):
            raise AgentRLError(
                f"method {method!r} has seeds {seeds}: every run needs a seed of its own, and only the "
                f"start policy {START!r} has none"
            )
        for run in runs:
            if set(run.episodes["task_id"]) != panel:
                raise AgentRLError(
                    f"method {method!r}, seed {run.seed}, was evaluated on other tasks than "
                    f"{results[0].method!r}: a comparison needs one test panel for all policies"
                )
    return groups


def _by_seed(runs: Sequence[MethodResult], metric: str) -> TaskValues:
    return {
        run.seed or 0: task_means(list(run.episodes["task_id"]), episode_metrics(run.episodes)[metric]) for run in runs
    }


def _difference(
    runs: Sequence[MethodResult], baseline: Sequence[MethodResult], level: float, resamples: int, seed: int
) -> tuple[Interval, int, int]:
    """Paired difference of success, the tasks it rests on, and the tasks that one side has no score of."""
    sides = [_by_seed(side, "success") for side in (runs, baseline)]
    interval, tasks = paired_difference(*sides, level=level, resamples=resamples, seed=seed)
    panel = set(runs[0].episodes["task_id"])
    return interval, len(tasks), len(panel - tasks)


def paired_difference(
    a: TaskValues, b: TaskValues, *, level: float, resamples: int, seed: int
) -> tuple[Interval, set[str]]:
    """Interval of mean(a) - mean(b) over the tasks scored on both sides, and these; NaN where a seed has none."""
    tasks = set().union(*a.values()) & set().union(*b.values())
    a, b = ({key: {task: own[task] for task in own if task in tasks} for key, own in side.items()} for side in (a, b))
    if not all(a.values()) or not all(b.values()):
        return _NO_INTERVAL, tasks
    return paired_across_seeds(a, b, level=level, resamples=resamples, seed=seed), tasks


def _reached(curve: pd.DataFrame | None, level: float) -> tuple[float, float]:
    """Updates and sampled tokens at the first validation success of at least `level`, or NaN."""
    if curve is None:
        return np.nan, np.nan
    hits = curve[(curve["metric"] == "success") & (curve["split"] == "validation") & (curve["mean"] >= level)]
    if hits.empty:
        return np.nan, np.nan
    first = hits.sort_values("update").iloc[0]
    return float(first["update"]), float(first["sampled_tokens"])


def _numbers(column: pd.Series) -> pd.Series:
    """Numbers of a nullable column (booleans with None, as Parquet gives them), NaN for no value."""
    return pd.Series([np.nan if pd.isna(value) else float(value) for value in column], index=column.index)
