"""Branch points: the worked numbers of BPO, and what every selection keeps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentbench_rl.algorithms.branch_points import branch_points, points_of_tree, quantile_threshold
from agentbench_rl.config.topology import Branch
from agentbench_rl.types import AgentRLError

ENTROPY = [0.40, 0.95, 0.90, 0.30, 0.80, 0.85, 1.20]
POSITION = [0, 50, 90, 130, 160, 230, 300]
SELECTIONS = ("top_m", "online_threshold", "lowest", "random", "equal", "every")


def choose(
    entropy: list[float],
    position: list[int],
    eligible: list[bool] | None = None,
    threshold: float = 0.0,
    tree: str = "tree",
    **changes: Any,
) -> list[int]:
    asked = Branch(kind="branch", **{"siblings": 2, "spacing": 0, **changes})
    able = np.array([True] * len(entropy) if eligible is None else eligible, dtype=bool)
    return branch_points(np.array(entropy, dtype=float), np.array(position), able, asked, threshold, tree)


@pytest.mark.parametrize(
    ("points", "spacing", "expected"),
    [(1, 64, [1]), (2, 64, [1, 5]), (3, 64, [1, 4, 5]), (4, 64, [1, 4, 5]), (3, 0, [1, 2, 5])],
)
def test_the_worked_selections_of_bpo(points: int, spacing: int, expected: list[int]) -> None:
    assert choose(ENTROPY, POSITION, points=points, spacing=spacing) == expected


def test_the_last_action_would_be_chosen_if_it_were_a_candidate() -> None:
    """So the example above does tell that it is none: one more turn at the end makes it one."""
    assert choose([*ENTROPY, 0.0], [*POSITION, 340], points=3, spacing=64) == [1, 5, 6]


def test_ties_go_to_the_earlier_turn_and_unknown_entropies_to_nobody() -> None:
    assert choose([0.5, math.nan, 0.5, 0.5, 0.1], [0, 1, 2, 3, 4], points=2) == [0, 2]
    assert choose([0.5, math.nan, 0.4, 0.4, 0.1], [0, 1, 2, 3, 4], points=1, select="lowest") == [2]
    assert choose([math.nan] * 4, [0, 1, 2, 3], points=2) == []


def test_equally_spaced_points_stand_in_the_middle_of_equal_parts() -> None:
    assert choose([0.0] * 10, list(range(10)), points=3, select="equal") == [1, 4, 7]
    assert choose([0.0] * 3, list(range(3)), points=5, select="equal") == [0, 1]


def test_every_boundary_is_the_first_and_the_last_one_too() -> None:
    assert choose(ENTROPY, POSITION, select="every", spacing=64, points=1) == list(range(7))
    assert choose(ENTROPY, POSITION, [True, False] * 3 + [True], select="every") == [0, 2, 4, 6]


def test_an_online_threshold_takes_the_first_that_reach_it_the_last_action_too() -> None:
    online: dict[str, Any] = {"select": "online_threshold", "threshold": 0.85}
    assert choose(ENTROPY, POSITION, points=2, **online) == [1, 2]
    assert choose(ENTROPY, POSITION, points=9, **online) == [1, 2, 5, 6]
    assert choose(ENTROPY, POSITION, points=2, spacing=64, **online) == [1, 5]


@pytest.mark.parametrize(("siblings", "points"), [(2, 12.0), (4, 4.0), (8, 12 / 7), (16, 0.8)])
def test_a_mean_of_thirteen_returns_whatever_the_number_of_siblings(siblings: int, points: float) -> None:
    drawn = [points_of_tree(points, f"s0.i0.{name}.t0") for name in range(4000)]
    assert set(drawn) <= {math.floor(points), math.ceil(points)}
    assert 1 + (siblings - 1) * np.mean(drawn) == pytest.approx(13.0, abs=0.35)
    assert drawn == [points_of_tree(points, f"s0.i0.{name}.t0") for name in range(4000)]


def test_four_siblings_at_one_point_are_four_returns() -> None:
    assert Branch(kind="branch", points=1, siblings=4).group_size == 4
    assert Branch(kind="branch", points=4, siblings=4).group_size == 13
    assert Branch(kind="branch", trees=2, points=0.8, siblings=16).group_size == 32


def test_a_point_of_one_sibling_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        Branch(kind="branch", siblings=1)


def test_the_threshold_is_reached_by_so_many_boundaries_of_a_backbone() -> None:
    entropy = np.array([0.1, 0.9, 0.5, math.nan, 0.7, 0.3])
    assert quantile_threshold(entropy, 2, 1.0) == 0.7
    assert quantile_threshold(entropy, 2, 1.5) == 0.5
    assert quantile_threshold(entropy, 2, 9.0) == 0.1
    assert quantile_threshold(entropy, 2, 0.1) == 0.9
    with pytest.raises(AgentRLError, match="no boundary_entropy"):
        quantile_threshold(np.array([math.nan]), 1, 1.0)


@st.composite
def backbones(draw: st.DrawFn) -> tuple[list[float], list[int], list[bool]]:
    length = draw(st.integers(0, 12))
    entropy = draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, math.nan]), min_size=length, max_size=length))
    tokens = draw(st.lists(st.integers(1, 40), min_size=length, max_size=length))
    eligible = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    return entropy, [sum(tokens[:step]) for step in range(length)], eligible


@settings(max_examples=50, deadline=None)
@given(backbones(), st.sampled_from(SELECTIONS), st.integers(1, 6), st.integers(0, 64))
def test_points_are_eligible_spaced_at_most_so_many_and_none_is_the_last_action(
    backbone: tuple[list[float], list[int], list[bool]], select: str, points: int, spacing: int
) -> None:
    entropy, position, eligible = backbone
    asked: dict[str, Any] = {"threshold": 0.5, "select": select, "points": points, "spacing": spacing}
    chosen = choose(entropy, position, eligible, **asked)
    assert chosen == choose(entropy, position, eligible, **asked)
    assert chosen == sorted(set(chosen))
    assert all(eligible[step] for step in chosen)
    if select == "every":
        return
    assert len(chosen) <= points
    assert all(position[b] - position[a] >= spacing for a, b in pairwise(chosen))
    if select == "online_threshold":
        assert all(entropy[step] >= 0.5 for step in chosen)
    else:
        assert len(entropy) - 1 not in chosen


@settings(max_examples=50, deadline=None)
@given(backbones(), backbones(), st.integers(1, 6), st.integers(0, 64))
def test_an_online_threshold_never_looks_ahead(
    backbone: tuple[list[float], list[int], list[bool]],
    other: tuple[list[float], list[int], list[bool]],
    points: int,
    spacing: int,
) -> None:
    """Whatever comes after a turn, the points up to it are the same."""
    asked: dict[str, Any] = {"select": "online_threshold", "threshold": 0.5, "points": points, "spacing": spacing}
    whole = choose(*backbone, **asked)
    for step in range(len(backbone[0])):
        shift = backbone[1][step] + 1
        changed = (
            backbone[0][: step + 1] + other[0],
            backbone[1][: step + 1] + [shift + place for place in other[1]],
            backbone[2][: step + 1] + other[2],
        )
        assert [t for t in choose(*changed, **asked) if t <= step] == [t for t in whole if t <= step]


def test_random_points_are_the_tree_s_own() -> None:
    drawn = {tuple(choose([0.0] * 30, list(range(30)), tree=f"t{n}", select="random", points=3)) for n in range(20)}
    assert len(drawn) > 10
