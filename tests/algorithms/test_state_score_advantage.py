"""The step-level advantage of 3SPO: worked numbers, what teaches nothing, and files of one round or of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError

LITERAL = {"std_floor": 0.0, "min_std": 0.0}


def method(parts: dict[str, Any] | None = None, **advantage: Any) -> AlgorithmConfig:
    composition = {"topology": {"kind": "expand"}, "schedule": {"kind": "post_step"}}
    settings = {"estimator": "state_score", **advantage}
    return AlgorithmConfig.model_validate({"source": "test", **composition, "advantage": settings, **(parts or {})})


def group(
    rewards: list[float | None], parent: str | None = None, tree: str = "t", planned: int | None = None, number: int = 0
) -> list[dict[str, Any]]:
    """Rows that were sampled at one state; the first one is named after its parent, for children to hang on."""
    name = f"{parent or tree}"
    return [
        {
            "turn_id": f"{name}.{index}",
            "parent_id": parent,
            "task_id": "a",
            "group_id": "g",
            "tree_id": tree,
            "step": name.count("."),
            "valid": True,
            "response_tokens": 3,
            "expand_round": number,
            "expand_score": 0.5,
            "expand_allocation": planned or len(rewards),
            "expand_reward": reward,
            "expand_novel": False,
        }
        for index, reward in enumerate(rewards)
    ]


EPISODES = pd.DataFrame({"episode_id": ["e"], "leaf_turn_id": ["t.1"], "ending": ["success"], "return": [1.0]})
NONE = EPISODES.iloc[:0]


def credit(
    rows: list[dict[str, Any]], config: AlgorithmConfig, episodes: pd.DataFrame = NONE
) -> tuple[pd.DataFrame, dict[str, float]]:
    frame, diagnostics = compute_advantages(pd.DataFrame(rows).astype({"expand_reward": float}), episodes, config)
    return frame.set_index("turn_id"), diagnostics


@pytest.mark.parametrize(
    ("rewards", "advantages"),
    [
        ([0.3, 0.1], [0.70711, -0.70711]),
        ([1.0, 0.0, 0.0, 0.0], [1.5, -0.5, -0.5, -0.5]),
        ([0.29396, -0.006295, 0.809763, -0.1], [0.1089, -0.6241, 1.368, -0.8528]),
    ],
)
def test_advantages_are_those_of_the_worked_numbers(rewards: list[float | None], advantages: list[float]) -> None:
    frame, _ = credit(group(rewards), method(**LITERAL))
    assert frame["advantage"].to_numpy() == pytest.approx(advantages, abs=6e-5)
    assert (frame["loss_weight"] == 1.0).all()


@pytest.mark.parametrize("config", [method(), method(**LITERAL), method(normalisation="mean")])
@pytest.mark.parametrize("rewards", [[0.5, 0.5, 0.5], [0.7]])
def test_equal_rewards_and_a_response_alone_teach_nothing(config: AlgorithmConfig, rewards: list[float | None]) -> None:
    frame, diagnostics = credit(group(rewards), config)
    assert not frame["advantage"].any()
    assert not frame["loss_weight"].any()
    assert diagnostics["incomplete_groups"] == 0.0


def test_a_small_gap_is_divided_by_the_floor_and_a_tiny_one_skipped() -> None:
    rows = group([0.02, 0.0]) + group([5e-5, 0.0], tree="u")
    frame, diagnostics = credit(rows, method())
    assert frame.loc["t.0", "advantage"] == pytest.approx(0.01 / 0.05, rel=1e-4)
    assert frame.loc[["u.0", "u.1"], "loss_weight"].tolist() == [0.0, 0.0]
    assert (diagnostics["groups"], diagnostics["frac_zero_std"]) == (2.0, 0.5)
    assert credit(rows, method(normalisation="mean"))[0].loc["t.0", "advantage"] == pytest.approx(0.01)


def test_the_price_of_an_invalid_action_stands_in_the_compared_reward() -> None:
    rows = group([0.3, 0.3])
    rows[1]["valid"] = False
    frame, _ = credit(rows, method({"reward": {"invalid_action_penalty": 0.1}}, normalisation="mean"))
    assert frame["advantage"].tolist() == pytest.approx([0.05, -0.05])


@pytest.mark.parametrize("rows", [group([0.9, None, 0.1]), group([0.9, 0.1], planned=3)])
def test_a_group_that_lost_a_response_to_a_fault_is_rejected_and_counted(rows: list[dict[str, Any]]) -> None:
    frame, diagnostics = credit(rows + group([0.2, 0.8], tree="u"), method())
    lost = frame.index.str.startswith("t.")
    assert not frame["loss_weight"][lost].any()
    assert (frame["loss_weight"][~lost] == 1.0).all()
    assert (diagnostics["groups"], diagnostics["incomplete_groups"]) == (1.0, 1.0)


#: Three rounds of one tree: at the root, at the first child, and at its first child; a second tree is over sooner.
ROUNDS = [
    group([0.9, 0.1, 0.4]) + group([0.2, 0.8], tree="u"),
    group([0.3, 0.7], "t.0", number=1) + group([0.6], "u.1", "u", number=1),
    group([0.5, 0.0, -0.2], "t.0.0", number=2),
]


def of_round(number: int) -> list[dict[str, Any]]:
    """The file of a round: its rows and the ancestors of these."""
    by_id = {row["turn_id"]: row for rows in ROUNDS for row in rows}
    found = {row["turn_id"]: row for row in ROUNDS[number]}
    for row in ROUNDS[number]:
        while (parent := row["parent_id"]) is not None:
            row = found[parent] = by_id[parent]
    return list(found.values())


def test_a_merged_file_has_the_advantages_of_its_rounds_and_ancestors_are_context_alone() -> None:
    merged, _ = credit([row for rows in ROUNDS for row in rows], method(), EPISODES)
    for number, rows in enumerate(ROUNDS):
        frame, diagnostics = credit(of_round(number), method(), EPISODES if number == 0 else NONE)
        own = [row["turn_id"] for row in rows]
        columns = ["advantage", "loss_weight"]
        pd.testing.assert_frame_equal(frame.loc[own, columns], merged.loc[own, columns])
        assert not frame.drop(index=own)[columns].to_numpy().any()
        assert diagnostics["incomplete_groups"] == 0.0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(-4, 8), min_size=1, max_size=5), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_neither_row_order_nor_names_change_anything(groups: list[list[int]], random: Any) -> None:
    rows = [row for number, values in enumerate(groups) for row in group([v / 8 for v in values], tree=f"t{number}")]
    frame, diagnostics = credit(rows, method())
    names = {f"t{number}": f"x{len(groups) - number}" for number in range(len(groups))}
    renamed = [
        row
        | {"tree_id": names[row["tree_id"]], "turn_id": row["turn_id"].replace(row["tree_id"], names[row["tree_id"]])}
        for row in random.sample(rows, len(rows))
    ]
    other, found = credit(renamed, method())
    back = {new: old for old, new in names.items()}
    other.index = [f"{back[turn.split('.')[0]]}.{turn.split('.')[1]}" for turn in other.index]
    assert np.array_equal(frame["advantage"], other.loc[frame.index, "advantage"])
    assert found == pytest.approx(diagnostics)
    for values, (_, part) in zip(groups, frame.groupby(frame.index.str.split(".").str[0]), strict=True):
        if part["loss_weight"].any():
            assert part["advantage"].sum() == pytest.approx(0.0, abs=1e-9)
            assert np.argmax(part["advantage"].to_numpy()) == int(np.argmax(values))


def test_an_empty_round_and_one_that_a_fault_left_empty_are_files_too() -> None:
    empty, _ = compute_advantages(pd.DataFrame(group([0.1])).iloc[:0], NONE, method())
    assert len(empty) == 0
    assert {"turn_id", "advantage", "loss_weight"} <= set(empty)
    frame, _ = credit(group([None, None]), method())
    assert not frame["loss_weight"].any()


def test_a_file_without_step_rewards_is_refused() -> None:
    rows = pd.DataFrame(group([0.1, 0.2])).drop(columns="expand_reward")
    with pytest.raises(AgentRLError, match="needs step rewards, column expand_reward"):
        compute_advantages(rows, NONE, method())


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        ([2, None], "expand_allocation holds a null"),
        ([2.0, 2.5], "expand_allocation holds a number that is no integer"),
    ],
)
def test_planned_numbers_that_are_none_are_refused(planned: list[float | None], message: str) -> None:
    rows = pd.DataFrame(group([0.1, 0.2])).assign(expand_allocation=planned)
    with pytest.raises(AgentRLError, match=message):
        compute_advantages(rows, NONE, method())
