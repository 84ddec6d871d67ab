"""Means with bootstrap intervals over the units that are really independent: tasks, and training seeds.

    one seed:       resample tasks
    several seeds:  resample seeds and tasks, each as a whole; a cell (seed, task) counts once per draw of its
                    seed times once per draw of its task (the pigeonhole bootstrap)

Sources: percentile interval, Efron (1979); crossed resampling, Owen, "The pigeonhole bootstrap" (2007).
Agarwal et al., "Deep RL at the edge of the statistical precipice" (2021), resample the runs of each task on
their own, for there every (run, task) is a training of its own. Here one training run answers all tasks, so a
run is drawn as a whole: drawing its tasks apart would average the luck of the run away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentbench_rl.types import AgentRLError

OVER_TASKS = "test tasks"
OVER_SEEDS = "training seeds"
RESAMPLES = 10_000

#: Upper limit of the elements of one block of draws; bounds memory, and never changes a number.
_BLOCK = 2_000_000

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval; `over` names the resampled units, `units` counts them."""

    mean: float
    low: float
    high: float
    units: int
    over: str = OVER_TASKS


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int, over: str = OVER_TASKS
) -> Interval:
    """Percentile bootstrap interval of the mean of independent units.

    values: [units]; their order does not matter. Raises AgentRLError without values or with a non-finite one.
    """
    data = np.sort(np.asarray(values, dtype=np.float64).reshape(-1))
    if data.size == 0 or not np.isfinite(data).all():
        raise AgentRLError(f"an interval needs finite values, got {data.size} with {_bad(data)} not finite")
    blocks = _draws(data.size, resamples, np.random.default_rng(seed))
    means = np.concatenate([data[block].mean(axis=1) for block in blocks])
    return _interval(float(data.mean()), means, level, data.size, over)


def task_means(task_ids: Sequence[str], values: ArrayLike) -> dict[str, float]:
    """Mean value per task over its episodes, sorted by task id; NaN marks an episode without a value.

    task_ids, values: [episodes]. A task whose every value is missing does not appear.
    """
    sums: dict[str, list[float]] = {}
    for task_id, value in zip(task_ids, np.asarray(values, dtype=np.float64).tolist(), strict=True):
        if not np.isnan(value):
            sums.setdefault(task_id, []).append(value)
    return {task_id: float(np.mean(np.sort(sums[task_id]))) for task_id in sorted(sums)}


def across_seeds(
    values_by_seed: Mapping[int, Mapping[str, float]],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int,
) -> Interval:
    """Interval of the mean over training seeds and tasks.

    values_by_seed: seed → task id → mean of the task's episodes. With one seed only tasks can be resampled,
    and the interval says so (`over`): it tells nothing about another training run.
    """
    cells = _cells(values_by_seed, _tasks(values_by_seed))
    if len(cells) == 1:
        return bootstrap_interval(cells[0], level=level, resamples=resamples, seed=seed)
    means = _crossed_means([cells], resamples, seed)[0]
    return _interval(float(np.nanmean(cells)), means, level, len(cells), OVER_SEEDS)


def paired_difference(
    a_by_task: Mapping[str, float],
    b_by_task: Mapping[str, float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int,
) -> Interval:
    """Interval of mean(a - b) over the same tasks; raises AgentRLError when the task sets differ."""
    _same_tasks(set(a_by_task), set(b_by_task))
    differences = [a_by_task[task_id] - b_by_task[task_id] for task_id in sorted(a_by_task)]
    return bootstrap_interval(differences, level=level, resamples=resamples, seed=seed)


def paired_across_seeds(
    a_by_seed: Mapping[int, Mapping[str, float]],
    b_by_seed: Mapping[int, Mapping[str, float]],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int,
) -> Interval:
    """Interval of mean(a) - mean(b): tasks are drawn once for both, the seeds of each side on their own.

    Raises AgentRLError when the task sets differ. With one seed on both sides this is `paired_difference`.
    """
    tasks = _tasks(a_by_seed)
    _same_tasks(set(tasks), set(_tasks(b_by_seed)))
    a, b = _cells(a_by_seed, tasks), _cells(b_by_seed, tasks)
    if len(a) == 1 and len(b) == 1:
        return paired_difference(
            next(iter(a_by_seed.values())),
            next(iter(b_by_seed.values())),
            level=level,
            resamples=resamples,
            seed=seed,
        )
    means_a, means_b = _crossed_means([a, b], resamples, seed)
    mean = float(np.nanmean(a) - np.nanmean(b))
    return _interval(mean, means_a - means_b, level, min(n for n in (len(a), len(b)) if n > 1), OVER_SEEDS)


def _crossed_means(sides: list[Array], resamples: int, seed: int) -> list[Array]:
    """Resampled means of each side: [seeds, tasks] with NaN where a cell has no value → [resamples]."""
    generator = np.random.default_rng(seed)
    seed_draws = [np.concatenate(list(_draws(len(cells), resamples, generator))) for cells in sides]
    means: list[list[Array]] = [[] for _ in sides]
    start = 0
    for tasks in _draws(sides[0].shape[1], resamples, generator):
        for side, cells in enumerate(sides):
            total, count = np.zeros(len(tasks)), np.zeros(len(tasks))
            for seed_index, row in enumerate(cells):
                drawn = (seed_draws[side][start : start + len(tasks)] == seed_index).sum(axis=1)
                total += drawn * np.nan_to_num(row)[tasks].sum(axis=1)
                count += drawn * np.isfinite(row)[tasks].sum(axis=1)
            # A draw can consist of empty cells only; it has no mean, and the quantiles leave it out.
            means[side].append(np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0))
        start += len(tasks)
    return [np.concatenate(blocks) for blocks in means]


def _draws(units: int, resamples: int, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Indices drawn with replacement, in blocks of rows: together [resamples, units]."""
    rows = max(1, _BLOCK // units)
    for start in range(0, resamples, rows):
        yield generator.integers(units, size=(min(rows, resamples - start), units))


def _interval(mean: float, means: Array, level: float, units: int, over: str) -> Interval:
    if not 0 < level < 1:
        raise AgentRLError(f"the confidence level must lie between 0 and 1, got {level}")
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(_settled(mean), _settled(low), _settled(high), units, over)


def _settled(value: float) -> float:
    """Keep twelve digits: the order of a summation must neither show in a table nor widen constant data."""
    return float(f"{value:.12g}")


def _tasks(values_by_seed: Mapping[int, Mapping[str, float]]) -> list[str]:
    tasks = sorted({task_id for values in values_by_seed.values() for task_id in values})
    if not tasks or not all(values_by_seed.values()):
        raise AgentRLError("an interval needs at least one scored task for every seed")
    return tasks


def _cells(values_by_seed: Mapping[int, Mapping[str, float]], tasks: list[str]) -> Array:
    """[seeds, tasks], seeds in ascending order; NaN where a seed has no value of a task."""
    rows = [[values_by_seed[key].get(task, np.nan) for task in tasks] for key in sorted(values_by_seed)]
    return np.array(rows, dtype=np.float64)


def _same_tasks(a: set[str], b: set[str]) -> None:
    if a != b:
        missing = sorted(a ^ b)
        raise AgentRLError(
            f"a paired comparison needs the same tasks on both sides; {len(missing)} of {len(a | b)} are on "
            f"one side only, for example {missing[0]!r}. Evaluate both on the same panel."
        )


def _bad(values: Array) -> int:
    return int((~np.isfinite(values)).sum())
