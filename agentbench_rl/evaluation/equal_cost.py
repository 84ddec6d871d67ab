"""Pairs of methods at equal cost: at as many updates, episodes or sampled tokens.

The budget of a pair is the largest cost that both paid, each on the mean over its seeds. Either method stands at its
last validation that was not dearer: nothing is interpolated, so one of them may have spent less than the budget, and
the table tells how much. An update may cost several times another method's (an explorer's episodes, trees, members of
a team), and all of it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pandas as pd

from agentbench_rl.evaluation.statistics import RESAMPLES
from agentbench_rl.evaluation.tables import START, MethodResult, TaskValues, grouped, paired_difference

#: Kind of cost → column of a `MethodResult.curve`.
COSTS = {"updates": "update", "episodes": "played_episodes", "sampled_tokens": "sampled_tokens"}
EQUAL_COST_COLUMNS = [
    *("cost", "method", "baseline", "budget", "mean", "low", "high", "interval_over", "tasks"),
    *(f"{side}_{key}" for side in ("method", "baseline") for key in ("success", "updates", "cost")),
]


def equal_cost_table(
    results: Sequence[MethodResult], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One row per kind of cost and pair of trained methods; columns EQUAL_COST_COLUMNS.

    mean, low, high: success of `method` minus that of `baseline` on the validation panel, paired over tasks. Of either
    side its own success, its updates and its cost, of the kind, at that validation; 0 updates: the start policy.
    """
    trained = [(name, runs) for name, runs in grouped(results).items() if name != START]
    points = {name: _points(runs) for name, runs in trained if all(run.curve is not None for run in runs)}
    rows = []
    for kind, column in COSTS.items():
        for (baseline, theirs), (method, own) in combinations(points.items(), 2):
            budget = min(float(side[column].max()) for side in (own, theirs))
            sides = [side[side[column] <= budget].iloc[-1] for side in (own, theirs)]
            interval, tasks = paired_difference(
                *(side["by_seed"] for side in sides), level=level, resamples=resamples, seed=seed
            )
            reached = [number for side in sides for number in (side["success"], side["update"], side[column])]
            numbers = interval.mean, interval.low, interval.high, interval.over
            rows.append((kind, method, baseline, budget, *numbers, len(tasks), *reached))
    return pd.DataFrame(rows, columns=EQUAL_COST_COLUMNS)


def _points(runs: Sequence[MethodResult]) -> pd.DataFrame:
    """Validations that every seed has, in order of updates: costs (means over seeds), success, and it by seed and task.

    success: the mean over seeds of the mean over tasks.
    """
    curves = {run.seed or 0: run.curve for run in runs if run.curve is not None}
    validations = pd.concat(curves, names=["seed"]).query("metric == 'success' and split == 'validation'")
    rows = []
    for _, point in validations.reset_index("seed").groupby("update", sort=True):
        if len(point) == len(curves):
            by_seed: TaskValues = dict(zip(point["seed"], point["by_task"], strict=True))
            means = point[["mean", *COSTS.values()]].mean().rename({"mean": "success"})
            rows.append(means.to_dict() | {"by_seed": by_seed})
    return pd.DataFrame(rows)
