"""Every policy loss against autograd of a plain padded implementation, and whatever the split into micro-batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from loss_tokens import AGGREGATIONS, batch, rows_of, step
from padded_losses import KINDS, naive_loss, padded
from pydantic import TypeAdapter

from agentbench_rl.algorithms.losses import LOSSES, TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.config.loss import LossConfig, ResponseLoss

LENGTHS = [1, 7, 3, 12, 2, 5, 9, 1, 4, 6, 3, 8]
WEIGHTS = [1.0, 1.5, 2.0] * 4
VARIANTS: dict[str, dict[str, Any]] = {
    "token clip": {"kind": "token_clip", "dual_clip": 1.4},
    "token clip without dual clip": {"kind": "token_clip", "clip_high": 0.28, "dual_clip": None},
    "moved centre": {"kind": "moved_centre", "dual_clip": 1.4},
    "moved centre without dual clip": {"kind": "moved_centre", "clip_high": 0.28, "dual_clip": None},
    "entropy clip": {"kind": "entropy_clip", "clip_high": 0.28, "dual_clip": 1.4},
    "sequence clip by mean": {"kind": "sequence_clip", "clip_low": 0.1, "clip_high": 0.12},
    "sequence clip by sum": {"kind": "sequence_clip", "clip_low": 0.3, "clip_high": 0.4, "pooling": "sum"},
    "cispo": {"kind": "cispo", "clip_low": 0.3},
    "sapo": {"kind": "sapo"},
    "gmpo": {"kind": "gmpo", "clip_low": 0.3, "clip_high": 0.2},
    "clip cov": {"kind": "clip_cov"},
    "kl cov": {"kind": "kl_cov", "coefficient": 0.7},
    "dppo by tv": {"kind": "dppo", "truncation": 1.3},
    "dppo by kl": {"kind": "dppo", "divergence": "kl", "threshold": 0.05, "truncation": 1.3},
    "policy gradient": {"kind": "policy_gradient"},
}
KL = [(0.0, "k3"), (0.1, "k1"), (0.1, "k2"), (0.1, "k3")]
REGULARISERS = [(*kl, entropy, mask) for kl, entropy, mask in product(KL, (0.0, 0.02), (None, 0.05))]


def loss_config(variant: dict[str, Any], **changes: object) -> LossConfig:
    if changes.get("aggregation", "").endswith("norm"):
        changes["norm_constant"] = 7.0
    return TypeAdapter(LossConfig).validate_python(variant | changes)


@pytest.fixture(scope="module")
def tokens() -> TrainedTokens:
    tokens = batch(LENGTHS, seed=3, weights=WEIGHTS)
    tokens.advantage[tokens.row == 4] = 0.0
    return replace(tokens, behaviour_logp=batch(LENGTHS, seed=3, drift=0.7).old_logp)


def test_every_loss_has_a_plain_implementation() -> None:
    assert set(KINDS) == set(LOSSES) == {variant["kind"] for variant in VARIANTS.values()}
    assert set(LOSSES) == {settings.model_fields["kind"].default for settings in get_args(ResponseLoss)}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_those_of_the_plain_implementation_however_the_step_is_split(
    tokens: TrainedTokens, name: str, aggregation: str
) -> None:
    normalisers = count_normalisers(WEIGHTS, LENGTHS)
    splits = [np.array_split(np.arange(len(LENGTHS)), pieces) for pieces in (1, 2, 4)]
    splits.append(np.array_split(np.random.default_rng(0).permutation(len(LENGTHS)), 3))
    parts = [[rows_of(tokens, chunk.tolist()) for chunk in split] for split in splits]
    for kl, estimator, entropy, mask in REGULARISERS:
        config = loss_config(
            VARIANTS[name],
            aggregation=aggregation,
            kl_coefficient=kl,
            kl_estimator=estimator,
            entropy_coefficient=entropy,
            sequence_mask=mask,
        )
        matrices = padded(tokens)
        expected = naive_loss(matrices, config.model_dump())
        expected.backward()
        gradient = matrices.logp.grad[matrices.mask > 0]
        # the terms are sums: it is enough to split the step with all of them
        for split in parts if kl and entropy and mask else parts[:1]:
            found, found_gradient, _ = step(tokens, split, config, normalisers)
            assert found == pytest.approx(expected.item(), abs=1e-10)
            torch.testing.assert_close(found_gradient, gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_tokens_of_these_tests_reach_both_sides_of_every_clip_and_mask(tokens: TrainedTokens, name: str) -> None:
    config = loss_config(VARIANTS[name], kl_coefficient=0.0, sequence_mask=0.05)
    sums = policy_loss(tokens, config, count_normalisers(WEIGHTS, LENGTHS)).sums
    hits = {key: value.item() for key, value in sums.items() if key.split("_")[0] in HITS}
    assert hits
    assert all(0 < value < sums["tokens"].item() for value in hits.values()), hits


HITS = {"clip", "gate", "mask", "truncated", "sequence"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", VARIANTS)
def test_log_ratios_of_a_hundred_give_finite_losses_and_gradients(name: str, dtype: Any) -> None:
    moves = torch.tensor([100.0, -100.0], dtype=dtype)
    for first, second, sign in product(moves, moves, (1.0, -1.0)):
        plain = batch([2, 40])
        move = torch.where(plain.row == 0, first, second)
        fields = {
            key: value.to(dtype) if value.is_floating_point() else value
            for key, value in vars(plain).items()
            if value is not None
        }
        old = fields["logp"].detach() - move.clamp(min=0.0)
        logp = (old + move).requires_grad_()
        given = fields | {"logp": logp, "old_logp": old, "advantage": torch.full_like(old, sign)}
        config = loss_config(VARIANTS[name], kl_coefficient=0.1, entropy_coefficient=0.1, sequence_mask=0.2)
        for settings in (config, config.model_copy(update={"sequence_mask": None})):
            tokens = TrainedTokens(**given)
            loss, gradient, _ = step(tokens, [tokens], settings, count_normalisers([1.0, 1.0], [2, 40]))
            assert np.isfinite(loss)
            assert bool(torch.isfinite(gradient).all())
