"""Trees of shared prefixes: every token once, gradients as without sharing, whatever was sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.training.logprobs import token_logprobs
from agentbench_rl.training.packing import Layout, PackedBatch, packed_batches, row_batches
from agentbench_rl.training.prefix_tree import auto_batches, tree_batches
from agentbench_rl.training.sequences import Response, Sequence
from tests.training.models import VOCABULARY, tiny_model


def sequence(name: str, ids: list[int], *responses: tuple[int, int]) -> Sequence:
    spans = tuple(Response(f"{name}.{index}", *place) for index, place in enumerate(responses))
    return Sequence(np.array(ids, np.int64), spans)


def group(shared: int, own: int, members: int, seed: int = 0) -> list[Sequence]:
    """Sequences that share a prompt and whose responses are their own."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, VOCABULARY, shared).tolist()
    return [
        sequence(f"m{index}", [*prompt, index, *rng.integers(0, VOCABULARY, own - 1).tolist()], (shared, shared + own))
        for index in range(members)
    ]


def gradients(model: Any, batches: list[PackedBatch], weights: dict[str, float]) -> list[torch.Tensor]:
    """Of sum w (2 logp + logp^2), with one weight per response."""
    model.zero_grad()
    for batch in batches:
        logp, _ = token_logprobs(model, batch, entropy=False)
        weight = torch.cat([logp.new_full((span.stop - span.start,), weights[span.turn_id]) for span in batch.spans])
        (weight * (2 * logp + logp.square())).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@st.composite
def families(draw: st.DrawFn) -> list[Sequence]:
    """Sequences that grow out of each other at random places, so that any tree may come of them; some are equal."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    made: list[list[int]] = [rng.integers(0, 4, 8).tolist()]
    for _ in range(draw(st.integers(0, 7))):
        parent = made[rng.integers(len(made))]
        made.append(parent[: rng.integers(2, len(parent) + 1)] + rng.integers(0, 4, rng.integers(0, 9)).tolist())
    sequences = []
    for index, ids in enumerate(made):
        cut = int(rng.integers(1, len(ids)))
        sequences.append(sequence(f"s{index}", ids, (cut, len(ids)), (1, cut)))
    return sequences


@given(families(), st.sampled_from([24, 64, 4096]))
@settings(max_examples=30, deadline=None)
def test_any_tree_has_the_gradient_of_its_sequences_one_by_one(family: list[Sequence], budget: int) -> None:
    model = tiny_model("gpt2")
    budget = max(budget, max(len(item.token_ids) for item in family))
    weights = {item.turn_id: (-1.0) ** n * (n + 1) for n, item in enumerate(r for s in family for r in s.responses)}
    expected = gradients(model, row_batches(family, 4096), weights)
    for ours, alone in zip(gradients(model, tree_batches(family, budget), weights), expected, strict=True):
        torch.testing.assert_close(ours, alone, atol=1e-10, rtol=1e-10)


def test_in_float32_the_gradient_agrees_to_a_relative_1e5() -> None:
    model = tiny_model(dtype=torch.float32)
    family = group(shared=40, own=12, members=6)
    weights = {f"m{index}.0": float(index - 2) for index in range(6)}
    layouts: list[Layout] = [tree_batches, packed_batches]
    expected = torch.cat([part.flatten() for part in gradients(model, row_batches(family, 4096), weights)])
    for layout in layouts:
        ours = torch.cat([part.flatten() for part in gradients(model, layout(family, 4096), weights)])
        assert float((ours - expected).norm() / expected.norm()) < 1e-5


def test_a_shared_prompt_is_computed_once() -> None:
    family = group(shared=40, own=12, members=6)
    (batch,) = tree_batches(family, 4096)
    assert batch.tokens == 40 + 6 * 12
    assert batch.flat_tokens == 6 * 52
    assert batch.position_ids[0, :52].tolist() == list(range(52))
    assert batch.position_ids[0, 52:64].tolist() == list(range(40, 52))


def test_a_long_tree_is_cut_into_rows_within_the_limit() -> None:
    family = group(shared=600, own=200, members=20)
    batches = tree_batches(family, 8192)
    assert all(batch.input_ids.shape[1] <= 2 * 800 for batch in batches)
    assert sum(batch.tokens for batch in batches) == 20 * 200 + 4 * 600  # 1000 tokens beside a prompt: 5 to a row
    assert sorted(span.turn_id for batch in batches for span in batch.spans) == sorted(f"m{n}.0" for n in range(20))


def test_a_budget_below_the_tree_is_kept() -> None:
    batches = tree_batches(group(shared=40, own=12, members=6), 70)
    assert all(batch.input_ids.numel() <= 70 for batch in batches)


def test_sequences_that_share_little_stay_rows_without_a_mask() -> None:
    family = group(shared=5, own=60, members=4)
    (batch,) = tree_batches(family, 4096)
    assert batch.input_ids.shape == (4, 65)
    assert not batch.masked


@pytest.mark.parametrize(("own", "shares"), [(12, True), (200, False)])
def test_auto_shares_where_that_saves_enough(own: int, shares: bool) -> None:
    batches = auto_batches(group(shared=80, own=own, members=6), 8192)
    assert (sum(batch.tokens for batch in batches) < 6 * (80 + own)) == shares


def test_the_layout_does_not_depend_on_the_order_of_the_sequences() -> None:
    family = group(shared=40, own=12, members=6) + group(shared=30, own=9, members=3, seed=1)
    for one, other in zip(tree_batches(family, 4096), tree_batches(family[::-1], 4096), strict=True):
        torch.testing.assert_close(one.input_ids, other.input_ids)
        assert one.spans == other.spans
