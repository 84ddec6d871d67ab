"""Merging turns into sequences: exact tokens, every response trained once, refused graphs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.types import AgentRLError


def turn(name: str, parent: str | None, prompt: list[int], response: list[int], extends: bool | None = None) -> Any:
    extends = parent is not None if extends is None else extends
    return (name, parent, extends, prompt, response)


def frame(*turns: Any) -> pd.DataFrame:
    return pd.DataFrame(turns, columns=["turn_id", "parent_id", "extends_parent", "prompt_ids", "response_ids"])


def trained(sequences: list[Any]) -> list[tuple[str, list[int]]]:
    return [
        (response.turn_id, sequence.token_ids[response.start : response.stop].tolist())
        for sequence in sequences
        for response in sequence.responses
    ]


def test_a_chain_becomes_one_sequence_with_the_sampled_tokens() -> None:
    (sequence,) = training_sequences(frame(turn("a", None, [1, 2], [3]), turn("b", "a", [4], [5, 6])))
    assert sequence.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert trained([sequence]) == [("a", [3]), ("b", [5, 6])]


def test_a_prompt_that_does_not_extend_starts_a_new_sequence() -> None:
    sequences = training_sequences(frame(turn("a", None, [1, 2], [3]), turn("b", "a", [7, 8], [9], extends=False)))
    assert [item.token_ids.tolist() for item in sequences] == [[1, 2, 3], [7, 8, 9]]


def test_a_whole_prompt_needs_no_parent_in_the_file() -> None:
    """A team's event that lost a member is dropped; what follows it is trained."""
    (sequence,) = training_sequences(frame(turn("b", "lost", [7, 8], [9], extends=False)))
    assert trained([sequence]) == [("b", [9])]


def test_a_shared_prefix_is_context_in_every_branch_and_trained_in_the_first() -> None:
    sequences = training_sequences(
        frame(turn("a", None, [1], [2]), turn("b", "a", [3], [4]), turn("c", "a", [3], [5]), turn("d", "c", [6], [7]))
    )
    assert [item.token_ids.tolist() for item in sequences] == [[1, 2, 3, 4], [1, 2, 3, 5, 6, 7]]
    assert trained(sequences) == [("a", [2]), ("b", [4]), ("c", [5]), ("d", [7])]


def test_a_sequence_that_earlier_paths_hold_entirely_is_not_repeated() -> None:
    sequences = training_sequences(
        frame(
            turn("a", None, [1], [2]), turn("b", "a", [3], [4], extends=False), turn("c", "a", [5], [6], extends=False)
        )
    )
    assert [item.token_ids.tolist() for item in sequences] == [[1, 2], [3, 4], [5, 6]]


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.integers(0, 3)), min_size=1, max_size=25))
@settings(max_examples=50, deadline=None)
def test_every_response_of_any_tree_is_trained_once_after_its_own_context(nodes: list[tuple[int, bool, int]]) -> None:
    turns: list[Any] = []
    for index, (pick, extends, size) in enumerate(nodes):
        parent = f"t{pick % index}" if index else None
        turns.append(turn(f"t{index}", parent, [1000 + index], [index] * size, extends and index > 0))
    context: dict[str, list[int]] = {}
    for name, parent, extends, prompt, response in turns:
        context[name] = (context[parent] if extends else []) + prompt + response
    sequences = training_sequences(frame(*turns).sample(frac=1, random_state=0))
    assert sorted(trained(sequences)) == sorted((name, response) for name, _, _, _, response in turns)
    for sequence in sequences:
        for response in sequence.responses:
            assert sequence.token_ids[: response.stop].tolist() == context[response.turn_id]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([turn("b", "a", [1], [2])], "parent a of turn b is missing"),
        ([turn("a", None, [1], [2]), turn("a", None, [1], [2])], "a occurs twice"),
        ([turn("a", None, [], [2])], "no token before"),
        ([turn("a", None, [1], [2], extends=True)], "extends_parent is true"),
        ([turn("a", "b", [1], [2]), turn("b", "a", [1], [2])], "cycle"),
        ([turn("a", "b", [1], [2]), turn("b", "a", [1], [2]), turn("c", "a", [1], [2])], "cycle"),
    ],
)
def test_graphs_that_cannot_be_trained_are_refused_with_the_turn(turns: list[Any], message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        training_sequences(frame(*turns))


def test_an_empty_file_gives_no_sequence() -> None:
    assert training_sequences(frame()) == []
