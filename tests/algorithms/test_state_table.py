"""The table of states: what counts how often, what reading does not do, and which files are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.algorithms.state_scores import StateScores, Transition
from agentbench_rl.algorithms.state_table import Leaf, StateTable, Tally, observation_key, state_keys
from agentbench_rl.config.topology import Expand, StateScore
from agentbench_rl.types import AgentRLError

RUN = {"algorithm": "3spo", "seed": 0}
#: Two rounds of leaves of one tree.
LEAVES: list[list[Leaf]] = [[("rab", False), ("rac", True)], [("rd", True), ("rara", False)]]


def counted(mode: Any, rounds: list[list[Leaf]] = LEAVES) -> StateTable:
    table, tally = StateTable(), Tally()
    for leaves in rounds:
        table.count(leaves, tally, mode)
        table.finish([success for _, success in leaves])
    return table


def test_reading_an_unknown_state_adds_nothing() -> None:
    table = counted("leaf")
    before = table.copy()
    scores = StateScores(table, StateScore(), 3)
    assert (scores.score("new"), scores.allocation("new", Expand(kind="expand"))) == (1.0, 8)
    scores.reward(Transition(["new"], "newer", False, False, 0.0))
    assert table == before
    assert "new" not in table.totals


def test_every_leaf_counts_once_per_state_or_every_tree_once_with_its_share_of_successes() -> None:
    by_leaf, by_tree = counted("leaf"), counted("tree")
    assert by_leaf.totals == {"r": 4, "a": 3, "b": 1, "c": 1, "d": 1}
    assert by_leaf.successes == {"r": 2, "a": 1, "b": 0, "c": 1, "d": 1}
    assert by_tree.totals == dict.fromkeys("rabcd", 1)
    assert by_tree.successes == pytest.approx({"r": 1 / 2, "a": 1 / 3, "b": 0, "c": 1, "d": 1})
    assert by_leaf.trajectories == by_tree.trajectories == 4


@settings(max_examples=30, deadline=None)
@given(st.permutations(LEAVES[0] + LEAVES[1]), st.integers(0, 4), st.sampled_from(["leaf", "tree"]))
def test_counts_do_not_depend_on_the_order_of_leaves_nor_on_the_rounds_they_came_in(
    leaves: list[Leaf], cut: int, mode: str
) -> None:
    found, expected = counted(mode, [leaves[:cut], leaves[cut:]]), counted(mode)
    assert found.totals == pytest.approx(expected.totals)
    assert found.successes == pytest.approx(expected.successes)
    assert found.trajectories == expected.trajectories


def test_a_second_tree_is_counted_beside_the_first_and_decay_lets_both_fade() -> None:
    table = counted("tree")
    table.count([("ra", True)], {}, "tree")
    assert (table.total("r"), table.success("r"), table.total("a")) == (2.0, 1.5, 2.0)
    table.decay(0.5)
    assert (table.total("r"), table.success("r"), table.trajectories) == (1.0, 0.75, 4)


def test_the_average_of_success_moves_with_trajectories_whatever_their_order() -> None:
    one, other = StateTable(), StateTable()
    one.finish([True, False, False])
    other.finish([False, True, False])
    assert one == other
    assert one.success_average == pytest.approx((1 - 0.98**3) / 3)
    for _ in range(400):
        one.finish([True])
    assert one.success_average == pytest.approx(1.0, abs=1e-3)


def test_a_table_that_was_saved_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    table = counted("tree", [*LEAVES, [("rx", True)], [("rxy", False)] * 3])
    table.decay(0.98)
    path = tmp_path / "states.parquet"
    pq.write_table(table.to_table(RUN), path, compression="zstd")
    read = StateTable.from_table(pq.read_table(path), RUN)
    assert read == table
    assert read.to_table(RUN).equals(table.to_table(RUN), check_metadata=True)
    one, other = (StateScores(held, StateScore(clock="trajectories"), 7) for held in (table, read))
    assert [one.score(key) for key in "raxy"] == [other.score(key) for key in "raxy"]


def test_the_table_of_another_run_is_refused() -> None:
    table = counted("leaf").to_table(RUN)
    with pytest.raises(AgentRLError, match=r'here: states of .*"seed": 0.*expected .*"seed": 1'):
        StateTable.from_table(table, RUN | {"seed": 1}, "here")
    with pytest.raises(AgentRLError, match="states of no run"):
        StateTable.from_table(table.replace_schema_metadata(None), RUN)
    with pytest.raises(AgentRLError, match="not those of a state table"):
        StateTable.from_table(table.drop_columns("n_total"), RUN)


ROW = {"state_key": "k", "next_state_key": "l", "anchor_key": observation_key("here"), "observation": "there"}


@pytest.mark.parametrize("kind", ["state", "observation"])
def test_states_are_shared_within_a_task_a_type_or_the_run(kind: Any) -> None:
    tasks = [("1", "look"), ("2", "look"), ("3", "heat")]
    for scope, distinct in (("task", 3), ("task_type", 2), ("global", 1)):
        settings = StateScore(key=kind, scope=scope)  # type: ignore[arg-type]
        keys = [state_keys(ROW | {"task_id": name, "task_type": type_}, settings) for name, type_ in tasks]
        assert len({before for before, _ in keys}) == len({after for _, after in keys}) == distinct
        assert all(before != after for before, after in keys)


def test_the_key_of_an_observation_is_the_same_before_and_after_a_step() -> None:
    settings = StateScore(key="observation")
    row = ROW | {"task_id": "1", "task_type": "look"}
    following = row | {"anchor_key": observation_key("there"), "observation": "here"}
    assert state_keys(row, settings) == state_keys(following, settings)[::-1]
