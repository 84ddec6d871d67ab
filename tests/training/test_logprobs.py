"""Log-probs of trained tokens equal the plain full-logits computation of each sequence alone, however batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from agentbench_rl.training import logprobs
from agentbench_rl.training.logprobs import token_logprobs
from agentbench_rl.training.packing import PackedBatch, packed_batches, row_batches
from agentbench_rl.training.prefix_tree import auto_batches, tree_batches
from agentbench_rl.training.sequences import Response, Sequence, training_sequences
from agentbench_rl.types import AgentRLError
from tests.training.models import SHAPE, VOCABULARY, chains, tiny_model
from tests.training.updates import score_rollouts

LAYOUTS = [row_batches, packed_batches, tree_batches, auto_batches]


def plain(model: Any, sequences: list[Sequence]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Log-probs and entropies from the full logits of one sequence at a time."""
    logps, entropies = {}, {}
    for sequence in sequences:
        ids = torch.from_numpy(sequence.token_ids)[None]
        with torch.no_grad():
            table = model(input_ids=ids).logits[0].log_softmax(-1)
        for item in sequence.responses:
            places = range(item.start, item.stop)
            logps[item.turn_id] = np.array([float(table[at - 1, ids[0, at]]) for at in places])
            entropies[item.turn_id] = np.array([float(-(table[at - 1].exp() * table[at - 1]).sum()) for at in places])
    return logps, entropies


def batched(model: Any, batches: list[PackedBatch]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    logps, entropies = {}, {}
    for batch in batches:
        logp, entropy = token_logprobs(model, batch, entropy=True)
        assert entropy is not None
        for span in batch.spans:
            logps[span.turn_id] = logp[span.start : span.stop].detach().numpy()
            entropies[span.turn_id] = entropy[span.start : span.stop].detach().numpy()
    return logps, entropies


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray], tolerance: float = 1e-10) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("budget", [80, 4096])
def test_batched_logprobs_and_entropies_equal_each_sequence_alone(
    kind: str,
    layout: Any,
    budget: int,
) -> None:
    model = tiny_model(kind)
    sequences = training_sequences(chains([1, 6, 2, 3, 1, 5]))
    for ours, expected in zip(batched(model, layout(sequences, budget)), plain(model, sequences), strict=True):
        assert_equal(ours, expected)


def test_head_chunks_change_neither_logprobs_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    (batch,) = packed_batches(training_sequences(chains([3, 2, 4])), 4096)
    results = []
    for logits in (2**26, 5 * VOCABULARY):
        monkeypatch.setattr(logprobs, "HEAD_LOGITS", logits)
        model.zero_grad()
        logp, entropy = token_logprobs(model, batch, entropy=True)
        assert entropy is not None
        (logp.square().sum() + entropy.sum()).backward()
        results.append((logp.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=0)


def test_the_head_never_sees_untrained_positions() -> None:
    model = tiny_model()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[0]))
    rollouts = chains([4, 4])
    (batch,) = packed_batches(training_sequences(rollouts), 4096)
    token_logprobs(model, batch, entropy=False)
    assert seen == [rollouts["response_ids"].map(len).sum()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_respect_the_token_budget_and_hold_every_sequence_once(layout: Any) -> None:
    sequences = training_sequences(chains([1, 6, 2, 3, 1, 5, 4, 4, 2]))
    batches = layout(sequences, 96)
    assert all(batch.input_ids.numel() <= 96 for batch in batches)
    assert sum(batch.tokens for batch in batches) == sum(len(item.token_ids) for item in sequences)
    found = sorted(span.turn_id for batch in batches for span in batch.spans)
    assert found == sorted(response.turn_id for item in sequences for response in item.responses)


def test_packing_fills_rows_best_fit_decreasing() -> None:
    sequences = [Sequence(np.arange(length), (Response(str(length), 1, 2),)) for length in (20, 60, 44, 4, 16)]
    (batch,) = packed_batches(sequences, 1000)
    starts = [torch.nonzero(row == 0).flatten() for row in batch.position_ids]
    rows = [(row[at] - at).tolist() for row, at in zip(batch.ends, starts, strict=True)]
    assert [[length for length in row if length > 1] for row in rows] == [[60, 4], [44, 20], [16]]
    assert batch.position_ids[0, 60:].tolist() == [0, 1, 2, 3]


def test_a_sequence_beyond_the_budget_is_refused() -> None:
    with pytest.raises(AgentRLError, match="sequence of 100 tokens"):
        row_batches([Sequence(np.arange(100), ())], 99)


def test_scores_cover_empty_responses_and_do_not_depend_on_micro_batches() -> None:
    model = tiny_model(dtype=torch.float32).train()
    rollouts = chains([5, 1, 3, 4], seed=3)
    sizes = rollouts["response_ids"].map(len)
    assert (sizes == 0).any()
    whole, split = score_rollouts(model, rollouts, 4096), score_rollouts(model, rollouts, 64)
    assert list(whole) == list(rollouts["turn_id"])
    assert [len(values) for values in whole.values()] == list(sizes)
    assert model.training
    assert_equal(whole, split, tolerance=1e-4)


def test_a_model_that_rescales_its_logits_is_refused() -> None:
    model = tiny_model()
    model.config.final_logit_softcapping = 30.0
    (batch,) = row_batches([Sequence(np.arange(5), (Response("a", 1, 5),))], 16)
    with pytest.raises(AgentRLError, match="final_logit_softcapping"):
        token_logprobs(model, batch, entropy=False)


def test_a_sliding_window_shorter_than_a_sequence_needs_a_row_for_each() -> None:
    model: Any = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)).double()
    long = training_sequences(chains([6, 1, 2]))
    for ours, expected in zip(batched(model, row_batches(long, 80)), plain(model, long), strict=True):
        assert_equal(ours, expected)
    with pytest.raises(AgentRLError, match=r"a sliding window of 8, .* set training\.packing=rows"):
        batched(model, packed_batches(long, 4096))
    short = [Sequence(np.arange(8), (Response(name, 1, 8),)) for name in "abc"]
    assert_equal(batched(model, packed_batches(short, 4096))[0], plain(model, short)[0])
