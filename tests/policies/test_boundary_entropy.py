"""Entropies at decision boundaries: BPO's worked numbers, lower bounds of top-k log-probs, the protocol's prefix."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.policies.entropies import boundary_token, top_k_entropy
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.types import AgentRLError


def entropy(*probabilities: float) -> float:
    return top_k_entropy([math.log(p) if p else -math.inf for p in probabilities])


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ((0.5, 0.5), 0.693147),
        ((0.7, 0.2, 0.1), 0.801819),
        ((0.97, 0.01, 0.01, 0.01), 0.167701),
        ((1.0,), 0.0),
        ((1.0, 0.0), 0.0),
        ((0.25, 0.25, 0.25, 0.25), 1.386294),
        ((0.5, 0.25), 1.039721),
    ],
)
def test_the_worked_entropies_of_bpo(probabilities: tuple[float, ...], expected: float) -> None:
    """The last one is of two of more tokens: what is missing is one bin."""
    assert entropy(*probabilities) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20), st.data())
def test_top_k_is_a_lower_bound_that_grows_with_k(weights: list[float], data: st.DataObject) -> None:
    probabilities = sorted((weight / sum(weights) for weight in weights), reverse=True)
    k = data.draw(st.integers(0, len(weights)))
    whole = entropy(*probabilities)
    assert entropy(*probabilities[:k]) <= whole + 1e-9
    assert entropy(*probabilities[:k]) <= entropy(*probabilities[: k + 1]) + 1e-9
    assert whole <= math.log(len(weights)) + 1e-9


def test_probabilities_that_sum_to_more_than_one_are_refused() -> None:
    with pytest.raises(AgentRLError, match=r"2 tokens sum to 1\.2"):
        entropy(0.6, 0.6)
    with pytest.raises(AgentRLError, match="sum to nan"):
        top_k_entropy([math.nan])


def spell(ids: Any) -> str:
    return "".join(map(chr, ids)).strip()


@pytest.mark.parametrize(
    ("response", "prefix", "token"),
    [
        ("go", "", "g"),
        ("<think>go", "<think>", "g"),
        ("<think>\n go", "<think>", "g"),
        ("\n<think>\ngo", " <think>\n", "g"),
        ("<think", "<think>", "k"),
        ("<action>go", "<think>", "a"),
        ("go", "<think>", "g"),
        ("<think>\n", "<think>", "\n"),
    ],
)
def test_the_first_token_that_is_no_part_of_the_prefix(response: str, prefix: str, token: str) -> None:
    index = boundary_token(list(map(ord, response)), prefix, spell)
    assert response[index] == token
    assert index == len(response) - 1 or not prefix.strip().startswith(response[: index + 1].strip())


def test_an_end_token_after_the_prefix_is_the_boundary(tokenizer: Any) -> None:
    codec = ChatCodec(tokenizer)
    ids = codec.encode_response("<think>")
    assert boundary_token(ids, "<think>", codec.decode) == len(ids) - 1
    more = codec.encode_response("<think> look")
    assert codec.decode(more[boundary_token(more, "<think>", codec.decode) :]).startswith("l")
