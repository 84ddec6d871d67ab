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
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentbench_rl.types import AgentRLError

OVER_TASKS = "test tasks"
OVER_SEEDS = "training seeds"
RESAMPLES = 10_000

#: Upper limit of the elements of one block of draws; bounds memory, and never changes a number.
_BLOCK = 2_000_000

Array = NDArray[np.float64]
Draws = NDArray[np.int64]
BySeed = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval; `over` names the resampled units."""

    mean: float
    low: float
    high: float
    over: str = OVER_TASKS


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int, over: str = OVER_TASKS
) -> Interval:
    """Percentile bootstrap interval of the mean of independent units.

    values: [units]; their order does not matter. Raises AgentRLError without values or with a non-finite one.
    """
    data = np.sort(np.asarray(values, dtype=np.float64).reshape(1, -1))
    if data.size == 0 or not np.isfinite(data).all():
        raise AgentRLError(f"an interval needs one or more finite values, got {data.ravel()[:5]}")
    return replace(_estimate([data], level, resamples, seed), over=over)


def task_means(task_ids: Sequence[str], values: ArrayLike) -> dict[str, float]:
    """Mean value per task over its episodes, sorted by task id; NaN marks an episode without a value.

    task_ids, values: [episodes]. A task whose every value is missing does not appear.
    """
    by_task: dict[str, list[float]] = {}
    for task_id, value in zip(task_ids, np.asarray(values, dtype=np.float64).tolist(), strict=True):
        if not np.isnan(value):
            by_task.setdefault(task_id, []).append(value)
    return {task_id: float(np.mean(np.sort(by_task[task_id]))) for task_id in sorted(by_task)}


def across_seeds(values_by_seed: BySeed, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int) -> Interval:
    """Interval of the mean over training seeds and tasks.

    values_by_seed: seed → task id → mean of the task's episodes. With one seed only tasks can be resampled,
    and the interval says so (`over`): it tells nothing about another training run.
    """
    return _estimate([_cells(values_by_seed)], level, resamples, seed)


def paired_across_seeds(
    a_by_seed: BySeed, b_by_seed: BySeed, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int
) -> Interval:
    """Interval of mean(a) - mean(b): tasks are drawn once for both, the seeds of each side on their own.

    Raises AgentRLError when the task sets differ.
    """
    a, b = (set().union(*side.values()) for side in (a_by_seed, b_by_seed))
    if a != b:
        raise AgentRLError(
            f"a paired comparison needs the same tasks on both sides; {len(a ^ b)} of {len(a | b)} are on "
            f"one side only, for example {min(a ^ b)!r}. Evaluate both on the same panel."
        )
    return _estimate([_cells(a_by_seed), _cells(b_by_seed)], level, resamples, seed)


def _estimate(sides: list[Array], level: float, resamples: int, seed: int) -> Interval:
    """Interval of the mean of one side, or of the difference of two; a side is [seeds, tasks]."""
    if not 0 < level < 1:
        raise AgentRLError(f"the confidence level must lie between 0 and 1, got {level}")
    generator = np.random.default_rng(seed)
    seed_draws = [np.concatenate(list(_draws(len(cells), resamples, generator))) for cells in sides]
    means: list[Array] = []
    start = 0
    for tasks in _draws(sides[0].shape[1], resamples, generator):
        rows = slice(start, start + len(tasks))
        drawn = [_drawn_means(*side, tasks) for side in zip(sides, (draw[rows] for draw in seed_draws), strict=True)]
        means.append(drawn[0] - drawn[1] if len(drawn) == 2 else drawn[0])
        start += len(tasks)
    low, high = np.nanquantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    centres = [float(np.nanmean(cells)) for cells in sides]
    mean = centres[0] - centres[1] if len(centres) == 2 else centres[0]
    seeds = [len(cells) for cells in sides if len(cells) > 1]
    over = OVER_SEEDS if seeds else OVER_TASKS
    return Interval(_settled(mean), _settled(low), _settled(high), over)


def _drawn_means(cells: Array, seeds: Draws, tasks: Draws) -> Array:
    """Means of drawn cells: cells [seeds, tasks], drawn indices [resamples, drawn] → [resamples]."""
    total, count = np.zeros(len(tasks)), np.zeros(len(tasks))
    for index, row in enumerate(cells):
        times = (seeds == index).sum(axis=1)
        total += times * np.nan_to_num(row)[tasks].sum(axis=1)
        count += times * np.isfinite(row)[tasks].sum(axis=1)
    # A draw can consist of empty cells only; it has no mean, and the quantiles leave it out.
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _draws(units: int, resamples: int, generator: np.random.Generator) -> Iterator[Draws]:
    """Indices drawn with replacement, in blocks of rows: together [resamples, units]."""
    rows = max(1, _BLOCK // units)
    for start in range(0, resamples, rows):
        yield generator.integers(units, size=(min(rows, resamples - start), units))


def _settled(value: float) -> float:
    """Keep twelve digits: the order of a summation must neither show in a table nor widen constant data."""
    return float(f"{value:.12g}")


def _cells(values_by_seed: BySeed) -> Array:
    """[seeds, tasks], both in ascending order; NaN where a seed has no value of a task."""
    tasks = sorted(set().union(*values_by_seed.values()))
    if not tasks or not all(values_by_seed.values()):
        raise AgentRLError("an interval needs at least one scored task for every seed")
    rows = [[values_by_seed[key].get(task, np.nan) for task in tasks] for key in sorted(values_by_seed)]
    return np.array(rows, dtype=np.float64)
