"""What holds of every policy loss: split invariance, on-policy gradient, clips, KL, metrics."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_tokens import AGGREGATIONS, batch, rows_of, select, step

from agentbench_rl.algorithms.losses import Normalisers, TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.config.loss import LossConfig, TokenClip
from agentbench_rl.types import AgentRLError

LENGTHS = st.lists(st.integers(1, 9), min_size=4, max_size=12)
properties = settings(max_examples=25, deadline=None)


def loss_config(aggregation: str = "token_mean", **changes: object) -> LossConfig:
    constant = 7.0 if aggregation.endswith("norm") else None
    given_settings = {"kl_coefficient": 0.0, "norm_constant": constant, **changes}
    return TokenClip.model_validate({"aggregation": aggregation, **given_settings})


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(LENGTHS, st.integers(0, 2**30))
@properties
def test_micro_batches_leave_loss_gradient_and_metrics_unchanged(
    aggregation: str, lengths: list[int], seed: int
) -> None:
    weights = [1.0 + (row % 3) / 2 for row in range(len(lengths))]
    tokens, normalisers = batch(lengths, seed, weights), count_normalisers(weights, lengths)
    config = loss_config(aggregation, kl_coefficient=0.1, entropy_coefficient=0.01)
    whole_loss, whole_gradient, (whole,) = step(tokens, [tokens], config, normalisers)
    for pieces in (1, 2, 4):
        split = [rows_of(tokens, chunk.tolist()) for chunk in np.array_split(np.arange(len(lengths)), pieces)]
        loss, gradient, parts = step(tokens, split, config, normalisers)
        assert loss == pytest.approx(whole_loss, abs=1e-10)
        torch.testing.assert_close(gradient, whole_gradient, rtol=0, atol=1e-10)
        for name, total in whole.sums.items():
            assert sum(part.sums[name].item() for part in parts) == pytest.approx(total.item(), abs=1e-10)
        assert max(part.maxima["ratio"].item() for part in parts) == whole.maxima["ratio"].item()
        objective = sum(value.item() for part in parts for value in part.objective.values())
        assert objective == pytest.approx(whole_loss, abs=1e-10)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_response_split_over_micro_batches_counts_with_its_whole_length(aggregation: str) -> None:
    tokens = batch([5, 8])
    config, normalisers = loss_config(aggregation), count_normalisers([1.0, 1.0], [5, 8])
    whole = policy_loss(tokens, config, normalisers).loss.item()
    early = torch.arange(13) < 9
    halves = [select(tokens, part, tokens.row[part], tokens.lengths) for part in (early, ~early)]
    assert sum(policy_loss(half, config, normalisers).loss.item() for half in halves) == pytest.approx(whole, abs=1e-12)


@given(LENGTHS, st.integers(0, 2**30))
@properties
def test_on_policy_the_loss_is_minus_the_advantage_and_so_is_its_gradient(lengths: list[int], seed: int) -> None:
    tokens = batch(lengths, seed)
    tokens = dataclasses.replace(tokens, old_logp=tokens.logp.detach())
    normalisers = count_normalisers([1.0] * len(lengths), lengths)
    loss, gradient, _ = step(tokens, [tokens], loss_config(), normalisers)
    expected = -tokens.advantage / normalisers.tokens
    assert loss == pytest.approx(expected.sum().item(), abs=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@given(LENGTHS, st.integers(0, 2**30))
@properties
def test_without_clips_the_gradient_is_the_importance_weighted_one(lengths: list[int], seed: int) -> None:
    tokens = batch(lengths, seed)
    normalisers = count_normalisers([1.0] * len(lengths), lengths)
    config = loss_config(clip_low=1.0, clip_high=1e9, dual_clip=None)
    _, gradient, _ = step(tokens, [tokens], config, normalisers)
    ratio = (tokens.logp - tokens.old_logp).exp().detach()
    torch.testing.assert_close(gradient, -tokens.advantage * ratio / normalisers.tokens, rtol=0, atol=1e-12)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**30))
@properties
def test_equal_lengths_make_token_mean_the_sequence_mean(length: int, rows: int, seed: int) -> None:
    tokens, normalisers = batch([length] * rows, seed), count_normalisers([1.0] * rows, [length] * rows)
    by_token, by_sequence = (
        policy_loss(tokens, loss_config(name), normalisers).loss.item()
        for name in ("token_mean", "sequence_mean_token_mean")
    )
    assert by_token == pytest.approx(by_sequence, abs=1e-12)


def test_a_row_of_weight_two_counts_like_the_row_twice() -> None:
    config = loss_config("sequence_mean_token_mean")
    single = batch([3, 5], weights=[2.0, 1.0])
    twice = dataclasses.replace(single, weight=torch.ones(8, dtype=torch.float64))
    weighted = policy_loss(single, config, count_normalisers([2.0, 1.0], [3, 5])).loss.item()
    normalisers = count_normalisers([1.0, 1.0, 1.0], [3, 3, 5])
    repeated = [policy_loss(rows_of(twice, rows), config, normalisers).loss.item() for rows in ([0], [0], [1])]
    assert weighted == pytest.approx(sum(repeated), abs=1e-12)


def test_an_extreme_log_ratio_stays_finite() -> None:
    tokens = batch([2])
    tokens = dataclasses.replace(tokens, old_logp=tokens.logp.detach() - torch.tensor([900.0, -900.0]))
    config = loss_config(kl_coefficient=0.1)
    loss, gradient, _ = step(tokens, [tokens], config, count_normalisers([1.0], [2]))
    assert np.isfinite(loss)
    assert bool(torch.isfinite(gradient).all())


def test_k3_is_clamped_at_ten_and_never_negative() -> None:
    difference = torch.linspace(-900, 900, 4001, dtype=torch.float64)
    estimate = kl_estimate(difference, torch.zeros_like(difference), "k3")
    assert estimate.max().item() == 10.0
    assert estimate.min().item() >= 0.0


def test_clip_shares_count_the_tokens_without_gradient() -> None:
    ratio = torch.tensor([0.5, 1.0, 1.5, 0.5, 1.0, 1.5, 4.0], dtype=torch.float64)
    logp = ratio.log().requires_grad_()
    tokens = TrainedTokens(
        logp=logp,
        old_logp=torch.zeros(7, dtype=torch.float64),
        reference_logp=None,
        entropy=None,
        advantage=torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64),
        weight=torch.ones(7, dtype=torch.float64),
        row=torch.zeros(7, dtype=torch.int64),
        lengths=torch.tensor([7]),
    )
    _, gradient, (parts,) = step(tokens, [tokens], loss_config(), count_normalisers([1.0], [7]))
    counts = {name: parts.sums[name].item() for name in ("clip_low", "clip_high", "clip_dual", "tokens")}
    assert counts == {"clip_low": 1.0, "clip_high": 1.0, "clip_dual": 1.0, "tokens": 7.0}
    assert (gradient == 0).sum().item() == 3


@pytest.mark.parametrize("missing", ["reference_logp", "entropy"])
def test_a_coefficient_without_its_input_is_an_error(missing: str) -> None:
    tokens = dataclasses.replace(batch([3]), **{missing: None})
    config = loss_config(kl_coefficient=0.1, entropy_coefficient=0.1)
    with pytest.raises(AgentRLError, match="loss"):
        policy_loss(tokens, config, count_normalisers([1.0], [3]))


def test_an_empty_response_does_not_count_and_nothing_to_train_is_an_error() -> None:
    assert count_normalisers([1.0, 1.0], [0, 4]) == Normalisers(tokens=4.0, sequences=1.0)
    with pytest.raises(AgentRLError, match="positive loss weight"):
        count_normalisers([0.0, 1.0], [3, 0])


def test_the_entropy_bonus_lowers_the_loss_and_kl_raises_it() -> None:
    tokens, normalisers = batch([3, 4]), count_normalisers([1.0, 1.0], [3, 4])
    plain = policy_loss(tokens, loss_config(), normalisers)
    both = policy_loss(tokens, loss_config(kl_coefficient=0.5, entropy_coefficient=0.25), normalisers)
    entropy, kl = (both.sums[name].item() / both.sums["tokens"].item() for name in ("entropy", "reference_kl"))
    assert both.loss.item() == pytest.approx(plain.loss.item() + 0.5 * kl - 0.25 * entropy, abs=1e-12)
