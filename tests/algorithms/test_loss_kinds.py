"""What the definitions of the single losses promise: GSPO, CISPO, SAPO, GMPO, DPPO, AEPO and the policy gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_tokens import batch, step
from pydantic import TypeAdapter

from agentbench_rl.algorithms.losses import LOSSES, TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.config.loss import Cispo, Dppo, EntropyClip, LossConfig, Sapo, SequenceClip, TokenClip
from agentbench_rl.types import AgentRLError

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)
SEEDS = st.integers(0, 2**30)
properties = settings(max_examples=25, deadline=None)


def gradient(tokens: TrainedTokens, config: LossConfig) -> torch.Tensor:
    lengths = tokens.lengths.tolist()
    return step(tokens, [tokens], config, count_normalisers([1.0] * len(lengths), lengths))[1]


def config(kind: str, **changes: Any) -> LossConfig:
    return TypeAdapter(LossConfig).validate_python({"kind": kind, "kl_coefficient": 0.0, **changes})


def exactly_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", LOSSES)
@given(LENGTHS, SEEDS)
@properties
def test_on_policy_every_loss_has_the_policy_gradient(kind: str, lengths: list[int], seed: int) -> None:
    tokens = batch(lengths, seed)
    tokens = dataclasses.replace(tokens, old_logp=tokens.logp.detach(), gate=tokens.gate & False)
    found = gradient(tokens, config(kind, aggregation="sequence_mean_token_mean"))
    exactly_close(found, -tokens.advantage / tokens.lengths[tokens.row] / len(lengths))


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@given(LENGTHS, SEEDS)
@properties
def test_on_policy_the_sequence_ratio_is_one_and_the_loss_minus_the_advantage(
    pooling: Any, lengths: list[int], seed: int
) -> None:
    tokens = batch(lengths, seed)
    part = LOSSES["sequence_clip"](
        dataclasses.replace(tokens, old_logp=tokens.logp.detach()), SequenceClip(pooling=pooling)
    )
    exactly_close(part.ratio, torch.ones_like(part.ratio))
    exactly_close(part.loss, -tokens.advantage)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@given(st.integers(1, 12), SEEDS)
@properties
def test_with_one_token_per_response_the_sequence_ratio_is_the_token_ratio(pooling: Any, rows: int, seed: int) -> None:
    tokens, bounds = batch([1] * rows, seed), {"clip_low": 0.2, "clip_high": 0.3}
    sequence = gradient(tokens, SequenceClip(**bounds, pooling=pooling, kl_coefficient=0.0))
    exactly_close(sequence, gradient(tokens, TokenClip(**bounds, dual_clip=None, kl_coefficient=0.0)))


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@given(LENGTHS, SEEDS)
@properties
def test_one_advantage_per_response_gives_gspo_token_the_gradient_of_gspo(
    pooling: Any, lengths: list[int], seed: int
) -> None:
    tokens = batch(lengths, seed)
    chosen = SequenceClip(
        pooling=pooling,
        clip_low=0.1,
        clip_high=0.1,
        kl_coefficient=0.0,
        aggregation="sequence_mean_token_mean",
    )
    found = gradient(tokens, chosen)
    tokens.logp.grad = None
    for row, length in enumerate(lengths):
        of = tokens.row == row
        log_ratio = (tokens.logp[of] - tokens.old_logp[of]).sum() / (length if pooling == "mean" else 1)
        ratio, advantage = log_ratio.exp(), tokens.advantage[of][0]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.1))
        (loss / len(lengths)).backward()
    exactly_close(found, tokens.logp.grad)


@given(LENGTHS, SEEDS, st.floats(0.01, 1.0), st.floats(0.01, 5.0), st.floats(0.0, 30.0))
@properties
def test_the_gradient_of_cispo_is_bounded_and_never_taken_away(
    lengths: list[int], seed: int, low: float, high: float, drift: float
) -> None:
    tokens = batch(lengths, seed, drift=drift)
    found = gradient(tokens, Cispo(clip_low=low, clip_high=high, kl_coefficient=0.0)) * sum(lengths)
    size = tokens.advantage.abs()
    assert bool((found.abs() <= (1 + high) * size + 1e-12).all())
    assert bool((found != 0).all())
    assert bool((found.sign() == -tokens.advantage.sign()).all())


@given(st.floats(0.05, 20.0), st.floats(0.05, 20.0), st.floats(-5.0, 5.0))
@properties
def test_the_gate_of_sapo_has_slope_one_on_policy(positive: float, negative: float, advantage: float) -> None:
    ratio = torch.ones(1, dtype=torch.float64, requires_grad=True)
    tokens = dataclasses.replace(
        batch([1]),
        logp=ratio.log(),
        old_logp=torch.zeros(1, dtype=torch.float64),
        advantage=torch.tensor([advantage], dtype=torch.float64),
    )
    LOSSES["sapo"](tokens, Sapo(tau_positive=positive, tau_negative=negative)).loss.sum().backward()
    assert ratio.grad.item() == pytest.approx(-advantage, abs=1e-12)


def single(ratio: list[float], advantage: list[float], old: list[float], **fields: Any) -> TrainedTokens:
    """One response of the given tokens."""
    logp = torch.tensor(old, dtype=torch.float64) + torch.tensor(ratio, dtype=torch.float64).log()
    given_fields = {"logp": logp.requires_grad_(), "old_logp": torch.tensor(old, dtype=torch.float64)} | fields
    return dataclasses.replace(
        batch([len(ratio)]), advantage=torch.tensor(advantage, dtype=torch.float64), **given_fields
    )


def test_an_uncertain_token_keeps_its_gradient_above_the_upper_bound_and_only_there() -> None:
    scores = torch.tensor([1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    tokens = single([1.5, 1.5, 1.5, 1.1, 0.5, 1.5, 4.0], [2.0] * 4 + [-2.0] * 3, [-3.0] * 7, entropy_scores=scores)
    part = LOSSES["entropy_clip"](tokens, EntropyClip(clip_high=0.28))
    exactly_close(part.loss.detach(), torch.tensor([-2.56, -2.56, -2.56, -2.2, 1.6, 3.0, 6.0], dtype=torch.float64))
    part.loss.sum().backward()
    exactly_close(tokens.logp.grad, torch.tensor([-2.56, 0.0, 0.0, -2.2, 0.0, 3.0, 0.0], dtype=torch.float64))
    counts = {name: int(hit.sum()) for name, hit in part.hits.items()}
    assert counts == {"clip_low": 1, "clip_high": 2, "clip_kept": 1, "clip_dual": 1}


def test_entropy_clip_without_scores_is_an_error() -> None:
    tokens = dataclasses.replace(batch([3]), entropy_scores=None)
    with pytest.raises(AgentRLError, match="entropy_scores"):
        policy_loss(tokens, EntropyClip(kl_coefficient=0.0), count_normalisers([1.0], [3]))


@pytest.mark.parametrize(("divergence", "threshold"), [("tv", 0.15), ("kl", 0.05)])
def test_dppo_masks_what_moved_too_far_along_its_advantage_by_probability_not_by_ratio(
    divergence: Any, threshold: float
) -> None:
    # a likely token moved by 0.3 up, the same down; a rare one by a factor of 5
    moves = [(0.8 / 0.5, 0.5), (0.2 / 0.5, 0.5), (5.0, 0.001)]
    ratio = [ratio for ratio, _ in moves] * 2
    old = torch.tensor([before for _, before in moves] * 2, dtype=torch.float64).log().tolist()
    tokens = single(ratio, [1.0] * 3 + [-1.0] * 3, old)
    part = LOSSES["dppo"](tokens, Dppo(divergence=divergence, threshold=threshold))
    part.loss.sum().backward()
    kept = [False, True, True, True, False, True]
    signed = zip(ratio, tokens.advantage.tolist(), kept, strict=True)
    expected = [-a * r if keep else 0.0 for r, a, keep in signed]
    exactly_close(tokens.logp.grad, torch.tensor(expected, dtype=torch.float64))


def test_dppo_truncates_the_weight_of_a_rare_token() -> None:
    tokens = single([50.0, 3.0], [1.0, -1.0], [-12.0, -12.0])
    part = LOSSES["dppo"](tokens, Dppo(truncation=20.0))
    part.loss.sum().backward()
    exactly_close(tokens.logp.grad, torch.tensor([-20.0, 3.0], dtype=torch.float64))
    assert part.hits["truncated"].tolist() == [True, False]


@given(LENGTHS, SEEDS, st.floats(0.0, 0.5))
@properties
def test_the_sequence_mask_takes_whole_responses_out_of_the_policy_loss_alone(
    lengths: list[int], seed: int, limit: float
) -> None:
    tokens, regularised = batch(lengths, seed), {"kl_coefficient": 0.1, "entropy_coefficient": 0.1}
    plain = gradient(tokens, TokenClip(**regularised))
    masked = gradient(tokens, TokenClip(**regularised, sequence_mask=limit + 1e-6))
    kl_only = gradient(
        dataclasses.replace(tokens, advantage=torch.zeros_like(tokens.advantage)), TokenClip(**regularised)
    )
    drift = torch.stack([part.mean() for part in (tokens.old_logp - tokens.logp.detach()).split(lengths)])
    out = (tokens.advantage < 0) & (drift[tokens.row] > limit + 1e-6)
    exactly_close(masked, torch.where(out, kl_only, plain))
