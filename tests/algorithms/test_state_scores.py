"""State scores, gate, allocation and step reward: worked numbers, properties, what the gate does to a weak policy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.algorithms.state_scores import StateScores, Transition, step_reward
from agentbench_rl.algorithms.state_table import StateTable
from agentbench_rl.config.topology import Expand, StateScore

ADAPTIVE = Expand(kind="expand")


def scores(total: float = 0.0, success: float = 0.0, time: int = 100, **changes: Any) -> StateScores:
    """Scores of the state "s" at t = `time`; the gate is not waiting."""
    table = StateTable({"s": total}, {"s": success}) if total else StateTable()
    return StateScores(table, StateScore(**{"warmup_iterations": 0, **changes}), time - 1)


@pytest.mark.parametrize(
    ("alpha", "time", "total", "success", "score", "size"),
    [
        (1, 100, 0, 0, 1.0, 8),
        (50, 7, 0, 0, 1.0, 8),
        (1, 100, 20, 4, 0.398107, 4),
        (50, 100, 20, 4, 1e-20, 1),
        (1, 100, 11, 1, 0.0, 0),
        (1, 100, 12, 2, 0.464159, 4),
        (1, 100, 9, 0, 1.0, 8),
        (1, 100, 10, 0, 0.0, 0),
        (1, 100, 20, 2, 0.0, 0),
        (1, 100, 20, 3, 0.501187, 5),
        (1, 400, 50, 45, 0.00455141, 1),
        (2, 10, 10, 3, 0.251189, 3),
    ],
)
def test_scores_and_allocations_are_those_of_the_worked_numbers(
    alpha: float, time: int, total: float, success: float, score: float, size: int
) -> None:
    found = scores(total, success, time, alpha=alpha)
    assert found.score("s") == pytest.approx(score, rel=1e-4)
    assert found.allocation("s", ADAPTIVE) == size


def test_a_score_that_underflows_does_not_close_a_mastered_state() -> None:
    found = scores(50, 50, 10**9, alpha=1e6)
    assert (found.score("s"), found.is_open("s"), found.allocation("s", ADAPTIVE)) == (0.0, True, 1)


@pytest.mark.parametrize(
    ("weight", "before", "after", "new", "success", "reward"),
    [
        (0.5, 1.0, 1.0, True, 0.0, 0.5),
        (0.5, 1.0, 0.0, False, 0.0, 0.0),
        (None, 0.398107, 0.05, True, 0.0, 0.293963),
        (None, 0.398107, 1.0, True, 0.0, -0.006295),
        (None, 0.398107, 0.0, True, 1.0, 0.809766),
        (None, 0.398107, 0.398107, False, 0.0, 0.0),
    ],
)
def test_step_rewards_are_those_of_the_worked_numbers(
    weight: float | None, before: float, after: float, new: bool, success: float, reward: float
) -> None:
    weight = scores(10, 4).novelty_weight("s") if weight is None else weight
    assert step_reward(weight, new, before, after, success) == pytest.approx(reward, abs=2e-6)


@pytest.mark.parametrize(("visits", "weight"), [(0, 0.5), (1, 0.4524), (5, 0.3033), (10, 0.1839), (50, 0.0034)])
def test_novelty_is_worth_less_the_more_often_a_state_was_visited(visits: int, weight: float) -> None:
    assert scores(visits).novelty_weight("s") == pytest.approx(weight, abs=5e-5)
    assert scores(visits, fixed_weight=0.25).novelty_weight("s") == 0.25


def step(next_key: str, path: tuple[str, ...] = ("r", "s"), ending: str = "", reward: float = 0.0) -> Transition:
    return Transition(path, next_key, leaf=bool(ending), success=ending == "success", reward=reward)


@pytest.mark.parametrize(
    ("novelty", "new"),
    [
        ("trajectory", {"s": False, "r": False, "seen": True, "unseen": True}),
        ("changed", {"s": False, "r": True, "seen": True, "unseen": True}),
        ("unseen", {"s": False, "r": True, "seen": False, "unseen": True}),
        ("none", {"s": False, "r": False, "seen": False, "unseen": False}),
    ],
)
def test_what_is_new_has_three_readings(novelty: str, new: dict[str, bool]) -> None:
    table = StateTable({"s": 3.0, "seen": 1.0}, {"s": 1.0, "seen": 0.0})
    found = StateScores(table, StateScore(novelty=novelty), 5)  # type: ignore[arg-type]
    assert {key: found.is_new(step(key)) for key in new} == new


def test_a_success_is_worth_half_and_what_is_left_of_its_states_score() -> None:
    found = scores(10, 4)
    weight = found.novelty_weight("s")
    expected = 0.5 + weight + (0.5 - weight) * found.ungated("s")
    assert found.reward(step("end", ending="success")) == pytest.approx(expected, abs=1e-15)
    assert found.reward(step("end", ending="failure")) == pytest.approx(
        weight + (0.5 - weight) * (found.ungated("s") - 1.0), abs=1e-15
    )


def test_a_dead_end_is_worth_less_than_a_mastered_state_unless_gated_scores_are_paid() -> None:
    table = StateTable({"s": 20.0, "dead": 20.0, "mastered": 20.0}, {"s": 6.0, "dead": 0.0, "mastered": 19.0})
    robust = StateScores(table, StateScore(warmup_iterations=0), 99)
    assert robust.reward(step("dead")) < robust.reward(step("mastered"))
    paper = StateScores(table, StateScore(warmup_iterations=0, potential="gated", alpha=50.0), 99)
    assert paper.reward(step("dead")) == pytest.approx(paper.reward(step("mastered")))


def test_success_may_be_paid_as_the_environments_reward() -> None:
    partial = step("end", ending="failure", reward=0.4)
    binary, graded = (StateScores(StateTable(), StateScore(success=kind), 0) for kind in ("binary", "score"))  # type: ignore[arg-type]
    assert graded.reward(partial) - binary.reward(partial) == pytest.approx(0.2)


def test_the_clock_is_the_iteration_the_runs_trajectories_or_the_states_visits() -> None:
    table = StateTable({"s": 20.0}, {"s": 4.0}, trajectories=399)
    rate = 4 / (20 + 1e-6)
    for clock, time in (("iteration", 100), ("trajectories", 400), ("visits", 21)):
        found = StateScores(table, StateScore(clock=clock), 99)  # type: ignore[arg-type]
        assert found.ungated("s") == pytest.approx(time**-rate)


def test_the_root_stays_open_unless_it_is_gated_too() -> None:
    assert scores(20, 0).allocation("s", ADAPTIVE, root=True) == 8
    assert scores(20, 0, gate_root=True).allocation("s", ADAPTIVE, root=True) == 0
    assert scores(20, 0).allocation("s", ADAPTIVE) == 0


@pytest.mark.parametrize(
    ("iteration", "average", "is_open"), [(0, 0.2, True), (9, 0.2, True), (10, 0.2, False), (0, 0.201, False)]
)
def test_the_gate_waits_for_success_but_not_for_ever(iteration: int, average: float, is_open: bool) -> None:
    table = StateTable({"s": 10.0}, {"s": 0.0}, success_average=average)
    assert StateScores(table, StateScore(warmup_iterations=10), iteration).is_open("s") == is_open


@pytest.mark.parametrize(
    ("rate", "frozen"), [(0.02, 0.98), (0.04, 0.93), (0.08, 0.78), (0.1, 0.70), (0.15, 0.49), (0.2, 0.32), (0.3, 0.11)]
)
def test_a_weak_policy_closes_common_states_by_the_literal_gate_and_not_by_the_robust_one(
    rate: float, frozen: float
) -> None:
    """At the tenth failure k successes came first, with a negative binomial probability."""
    found = sum(
        math.comb(k + 9, k) * rate**k * (1 - rate) ** 10 * (not scores(10 + k, k).is_open("s")) for k in range(200)
    )
    assert found == pytest.approx((1 - rate) ** 10 * (1 + 10 * rate), abs=1e-12)
    assert found == pytest.approx(frozen, abs=6e-3)
    table = StateTable()
    table.count([(["s"], False)] * 10, {}, "tree")
    assert StateScores(table, StateScore(warmup_iterations=0), 99).is_open("s")


COUNTS = st.tuples(st.integers(0, 200), st.floats(0.0, 1.0)).map(lambda c: (float(c[0]), c[0] * c[1]))
ALPHAS = st.sampled_from([0.0, 0.3, 1.0, 5.0, 50.0])


@settings(max_examples=50, deadline=None)
@given(COUNTS, COUNTS, ALPHAS, st.integers(1, 1000), st.integers(2, 16))
def test_scores_lie_in_0_to_1_and_fall_with_success_and_allocations_keep_their_bounds(
    one: tuple[float, float], other: tuple[float, float], alpha: float, time: int, most: int
) -> None:
    topology = Expand(kind="expand", max_actions=most)
    first, second = (scores(*counts, time, alpha=alpha) for counts in (one, other))
    for found in (first, second):
        assert 0.0 <= found.score("s") <= found.ungated("s") <= 1.0
        assert found.allocation("s", topology) in (range(1, most + 1) if found.is_open("s") else (0,))
        assert found.allocation("s", Expand(kind="expand", max_actions=most, allocation="uniform")) == most
    if first.success_rate("s") <= second.success_rate("s"):
        assert first.ungated("s") >= second.ungated("s")


@settings(max_examples=50, deadline=None)
@given(
    COUNTS,
    COUNTS,
    st.sampled_from(["trajectory", "changed", "unseen", "none"]),
    st.sampled_from(["ungated", "gated", "none"]),
    st.sampled_from(["", "success", "failure"]),
)
def test_step_rewards_lie_in_their_range(
    one: tuple[float, float], other: tuple[float, float], novelty: Any, potential: Any, ending: str
) -> None:
    table = StateTable({"s": one[0], "n": other[0]}, {"s": one[1], "n": other[1]})
    found = StateScores(table, StateScore(novelty=novelty, potential=potential, warmup_iterations=0), 50)
    assert -0.5 <= found.reward(step("n", ending=ending, reward=float(ending == "success"))) <= 1.0
