"""FlexAttention's block-sparse masks, which updates use on a GPU, against dense ones; here on a CPU.

A CPU compiles the forward pass (in minutes) and has no backward pass: FlexAttention refuses inputs that need a gradient
there. Gradients are compared on a GPU, by `benchmarks/gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from transformers.integrations import flex_attention as integrations

from agentbench_rl.training import logprobs
from agentbench_rl.training.logprobs import precision, token_logprobs
from agentbench_rl.training.packing import PackedBatch, batches_of_rows, forest, packed_batches
from agentbench_rl.training.prefix_tree import tree_batches
from agentbench_rl.training.sequences import Response, Sequence
from tests.training.models import VOCABULARY, tiny_model

pytestmark = pytest.mark.extras


def group(seed: int) -> list[Sequence]:
    """Four responses of 70 tokens to one prompt of 120: a tree of 400 tokens, longer than a block of the mask."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, VOCABULARY, 120)
    sequences = [np.concatenate([prompt, rng.integers(0, VOCABULARY, 70)]) for _ in range(4)]
    return [Sequence(ids, (Response(str(number), 120, 190),)) for number, ids in enumerate(sequences)]


def forks(rows: int, length: int) -> PackedBatch:
    """Rows of as many tokens, each two sequences that part before their last four tokens."""
    ids = np.arange(length - 4) % VOCABULARY
    row = forest([Sequence(ids, (Response(name, 1, len(ids)),)) for name in "ab"], [0, len(ids) - 4])
    return batches_of_rows([row] * rows, 10_000)[0]


def unlike(seed: int) -> list[Sequence]:
    """One long and many short sequences, which share rows."""
    rng = np.random.default_rng(seed)
    lengths = [200, 90, 60, 110, 80]
    return [Sequence(rng.integers(0, VOCABULARY, size), (Response(str(size), 9, size),)) for size in lengths]


def log_probs(model: Any, batch: PackedBatch, dtype: Any = "float32") -> torch.Tensor:
    with precision(model, dtype):
        return token_logprobs(model, batch, entropy=False)[0]


@torch.no_grad()
def both(
    monkeypatch: pytest.MonkeyPatch, model: Any, batch: PackedBatch, dtype: Any = "float32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs by FlexAttention, and by the dense mask."""
    found = []
    for sparse in (True, False):
        monkeypatch.setattr(logprobs, "block_sparse", lambda device, sparse=sparse: sparse)
        model.config._attn_implementation = "sdpa"
        found.append(log_probs(model, batch, dtype))
        assert model.config._attn_implementation == ("flex_attention" if sparse else "sdpa")
    return found[0], found[1]


@pytest.mark.parametrize(("make", "layout"), [(group, tree_batches), (unlike, packed_batches)])
def test_block_sparse_masks_give_the_log_probs_of_dense_ones(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], list[Sequence]], layout: Any
) -> None:
    model = tiny_model("qwen2", torch.float32).eval()
    (batch,) = layout(make(0), 4096)
    assert batch.masked
    torch.testing.assert_close(*both(monkeypatch, model, batch), atol=1e-4, rtol=0)


def test_under_autocast_both_compute_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen2", torch.float32).eval()
    (batch,) = tree_batches(group(0), 4096)
    sparse, dense = both(monkeypatch, model, batch, "bfloat16")
    exact, _ = both(monkeypatch, model, batch)
    assert (sparse - exact).abs().max() > 1e-3
    torch.testing.assert_close(sparse, dense, atol=0.1, rtol=0)


def test_another_mask_of_the_same_shape_needs_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch compiles too often it goes on without, in time and memory of the square of a row's length."""
    model = tiny_model("qwen2", torch.float32).eval()
    for seed in range(2):
        with torch._dynamo.config.patch(error_on_recompile=seed > 0):
            (batch,) = tree_batches(group(seed), 4096)
            sparse, dense = both(monkeypatch, model, batch)
        torch.testing.assert_close(sparse, dense, atol=1e-4, rtol=0)


def test_rows_of_many_shapes_stay_compiled_when_scored_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles anew for few of the shapes, but for all of those again where gradients are wanted."""
    compiled = torch.compile(flex_attention, backend="eager")

    def attend(*tensors: torch.Tensor, training: bool, **settings: Any) -> Any:
        return compiled(*tensors, **settings)

    torch.compiler.reset()
    monkeypatch.setattr(integrations, "compile_friendly_flex_attention", attend)
    monkeypatch.setattr(logprobs, "block_sparse", lambda device: True)
    model = tiny_model("qwen2", torch.float32).eval().requires_grad_(False)
    shapes = [(4, 180), (1, 180), (2, 240), (3, 140), (1, 154), (8, 123), (5, 157), (1, 20)]
    with torch.compiler.config.patch(fail_on_recompile_limit_hit=True):
        for wanted in (False, True):
            for rows, length in shapes:
                with torch.set_grad_enabled(wanted):
                    log_probs(model, forks(rows, length))
    torch.compiler.reset()
