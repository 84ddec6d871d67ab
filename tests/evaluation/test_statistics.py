from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.evaluation.statistics import (
    OVER_SEEDS,
    OVER_TASKS,
    across_seeds,
    bootstrap_interval,
    paired_across_seeds,
    task_means,
)
from agentbench_rl.types import AgentRLError

finite = st.floats(-1e3, 1e3, allow_nan=False)


def table(cells: np.ndarray) -> dict[int, dict[str, float]]:
    """[seeds, tasks] → seed → task → value."""
    return {seed: {f"t{task}": float(value) for task, value in enumerate(row)} for seed, row in enumerate(cells)}


def test_two_tasks_by_hand() -> None:
    # The means of two draws from {0, 1} are 0, 1/2, 1/2 and 1: at 40 % the interval is the middle half's point.
    interval = bootstrap_interval([0.0, 1.0], level=0.4, seed=0)
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.5, 0.5)
    interval = bootstrap_interval([0.0, 1.0], level=0.9, seed=0)
    assert (interval.low, interval.high, interval.over) == (0.0, 1.0, OVER_TASKS)


def test_ninety_five_percent_intervals_cover_a_bernoulli_mean_about_that_often() -> None:
    generator = np.random.default_rng(0)
    panels = generator.random((400, 100)) < 0.6
    intervals = [bootstrap_interval(panel, resamples=1000, seed=1) for panel in panels]
    coverage = np.mean([interval.low <= 0.6 <= interval.high for interval in intervals])
    assert 0.92 <= coverage <= 0.98
    # The width is that of the normal approximation, 2 · 1.96 · sqrt(0.6 · 0.4 / 100).
    width = np.mean([interval.high - interval.low for interval in intervals])
    assert width == pytest.approx(0.192, rel=0.05)


def test_intervals_over_seeds_cover_although_all_tasks_of_a_run_share_its_luck() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        logits = generator.normal(size=(1, 50)) + generator.normal(scale=0.5, size=(3, 1))
        success = generator.random((3, 50)) < 1 / (1 + np.exp(-logits))
        interval = across_seeds(table(success), resamples=400, seed=1)
        covered += interval.low <= 0.5 <= interval.high
    assert covered >= 88


@settings(max_examples=30, deadline=None)
@given(st.lists(finite, min_size=1, max_size=12), st.randoms())
def test_the_order_of_units_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert bootstrap_interval(values, resamples=50, seed=3) == bootstrap_interval(shuffled, resamples=50, seed=3)


@settings(max_examples=30, deadline=None)
@given(finite, st.integers(1, 4), st.integers(1, 6))
def test_constant_data_has_no_width(value: float, seeds: int, tasks: int) -> None:
    interval = across_seeds(table(np.full((seeds, tasks), value)), resamples=50, seed=0)
    assert interval.low == interval.mean == interval.high


@settings(max_examples=30, deadline=None)
@given(st.lists(finite, min_size=1, max_size=12), st.floats(0.05, 0.9))
def test_intervals_lie_within_the_data_and_grow_with_the_level(values: list[float], level: float) -> None:
    narrow, wide = (bootstrap_interval(values, level=x, resamples=50, seed=0) for x in (level, level + 0.09))
    assert min(values) - 1e-8 <= wide.low <= narrow.low <= narrow.high <= wide.high <= max(values) + 1e-8


def test_pairing_is_narrower_than_comparing_unpaired_when_tasks_differ_in_difficulty() -> None:
    generator = np.random.default_rng(0)
    ability = generator.normal(size=200)
    a = dict(enumerate_tasks(ability + generator.normal(scale=0.2, size=200)))
    b = dict(enumerate_tasks(ability + 0.1 + generator.normal(scale=0.2, size=200)))
    paired = paired_across_seeds({0: b}, {0: a}, seed=0)
    alone = [bootstrap_interval(list(side.values()), seed=0) for side in (a, b)]
    unpaired = np.hypot(*(interval.high - interval.low for interval in alone))
    assert paired.high - paired.low < unpaired / 2
    assert paired.low > 0


def enumerate_tasks(values: np.ndarray) -> list[tuple[str, float]]:
    return [(f"t{index}", float(value)) for index, value in enumerate(values)]


def test_a_paired_comparison_refuses_different_panels() -> None:
    with pytest.raises(AgentRLError, match="2 of 3 are on one side only, for example 'b'"):
        paired_across_seeds({0: {"a": 1.0, "b": 0.0}}, {0: {"a": 1.0, "c": 0.0}}, seed=0)


def test_episodes_of_a_task_are_averaged_before_tasks_are() -> None:
    means = task_means(["a", "a", "a", "b", "c"], [1.0, 0.0, np.nan, 1.0, np.nan])
    assert means == {"a": 0.5, "b": 1.0}


def test_one_seed_is_labelled_as_an_interval_over_tasks_and_several_as_over_seeds() -> None:
    cells = np.random.default_rng(0).random((3, 20))
    one, three = across_seeds(table(cells[:1]), seed=0), across_seeds(table(cells), seed=0)
    assert one.over == OVER_TASKS
    assert three.over == OVER_SEEDS
    assert three.mean == pytest.approx(cells.mean())
    both = paired_across_seeds(table(cells), table(cells[:1]), seed=0)
    assert (both.over, both.mean) == (OVER_SEEDS, pytest.approx(cells.mean() - cells[0].mean()))


def test_a_run_is_drawn_as_a_whole() -> None:
    # Two runs that differ on every task: half of the draws take one run twice, so the ends are the runs.
    interval = across_seeds(table(np.array([[0.2] * 30, [0.8] * 30])), level=0.9, seed=0)
    assert (interval.low, interval.high) == (0.2, 0.8)


def test_a_task_without_a_score_in_one_run_counts_where_it_has_one() -> None:
    interval = across_seeds({0: {"a": 1.0, "b": 0.0}, 1: {"a": 1.0}}, seed=0)
    assert interval.mean == pytest.approx(2 / 3)
    assert (interval.low, interval.high) == (0.0, 1.0)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_no_interval_without_finite_values(values: list[float]) -> None:
    with pytest.raises(AgentRLError, match="finite values"):
        bootstrap_interval(values, seed=0)


def test_blocks_of_draws_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = np.random.default_rng(0).random((2, 15))
    whole = across_seeds(table(cells), resamples=300, seed=0)
    monkeypatch.setattr("agentbench_rl.evaluation.statistics._BLOCK", 100)
    assert across_seeds(table(cells), resamples=300, seed=0) == whole
