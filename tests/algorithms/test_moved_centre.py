"""RSPO's clip around the ratio of old to behaviour policy, and the mix of fresh and replayed responses in one loss."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_tokens import AGGREGATIONS, batch, rows_of, step

from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.algorithms.losses.moved_centre import moved_centre
from agentbench_rl.algorithms.losses.token_clip import token_clip
from agentbench_rl.config.loss import MovedCentre, TokenClip

CLOSE = {"rtol": 0, "atol": 1e-6}
PLAIN = MovedCentre(kl_coefficient=0.0, dual_clip=None)
LENGTHS = [4, 2, 7, 1, 5]
SOURCES = [0, 1, 0, 1, 0]
log_probs = st.floats(-6.0, -0.01)


def tokens_of(
    theta: list[float], old: list[float], behaviour: list[float] | None, advantage: list[float], replayed: bool = True
) -> TrainedTokens:
    """One response, from log-probs."""

    def tensor(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    count = len(theta)
    return TrainedTokens(
        logp=tensor(theta).requires_grad_(),
        old_logp=tensor(old),
        reference_logp=None,
        entropy=None,
        advantage=tensor(advantage),
        weight=torch.ones(count, dtype=torch.float64),
        row=torch.zeros(count, dtype=torch.int64),
        lengths=torch.tensor([count]),
        source=torch.full((count,), int(replayed)),
        behaviour_logp=None if behaviour is None else tensor(behaviour),
    )


def objective(tokens: TrainedTokens, config: MovedCentre = PLAIN) -> tuple[torch.Tensor, torch.Tensor]:
    """Objective of every token, and its derivative by the log-prob."""
    loss = moved_centre(tokens, config).loss
    (gradient,) = torch.autograd.grad(loss.sum(), tokens.logp)
    return -loss.detach(), -gradient


def mixed_batch(seed: int = 3) -> TrainedTokens:
    """Fresh and replayed responses; the behaviour policy of the replayed ones is another one."""
    tokens = batch(LENGTHS, seed)
    source = torch.tensor(SOURCES)[tokens.row]
    shift = torch.randn(len(source), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    behaviour = torch.where(source > 0, tokens.old_logp + shift, tokens.old_logp)
    return dataclasses.replace(tokens, source=source, behaviour_logp=behaviour)


def test_the_table_of_clips_and_gradients(vectors: dict[str, Any]) -> None:
    rows = vectors["RSPO-1 shifted-centre clip table eps=0.2"]["rows"]
    columns = ([math.log(row[name]) for row in rows] for name in ("pi_theta", "pi_old", "pi_B"))
    tokens = tokens_of(*columns, [row["A"] for row in rows])
    part = moved_centre(tokens, PLAIN)
    found = (part.ratio.detach(), part.centre, *objective(tokens))
    for values, name in zip(found, ("r", "center", "objective", "dJ_dlogp"), strict=True):
        torch.testing.assert_close(values, torch.tensor([row[name] for row in rows], dtype=torch.float64), **CLOSE)
    plain = dataclasses.replace(tokens, old_logp=tokens.behaviour_logp)
    unshifted = token_clip(plain, TokenClip(dual_clip=None)).loss
    expected = torch.tensor([row["unshifted_objective"] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(-unshifted.detach(), expected, **CLOSE)


def test_a_sequence_of_two_tokens(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-9 two-token off-policy sequence"]
    tokens = tokens_of(vector["logp_theta"], vector["logp_old"], vector["logp_B"], [1.0, 1.0])
    part = moved_centre(tokens, PLAIN)
    assert part.centre is not None
    assert part.ratio.tolist() == pytest.approx(vector["r"], abs=1e-6)
    assert part.centre.tolist() == pytest.approx(vector["center"], abs=1e-6)
    assert part.hits["clip_high"].tolist() == vector["clipped"]
    parts = policy_loss(tokens, PLAIN, count_normalisers([1.0], [2], [1], [1.0]))
    assert parts.loss.item() == pytest.approx(vector["token_mean_loss"], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("bounds", [(0.2, 0.28), (0.003, 0.17)])
def test_p2_the_token_clip_bit_for_bit_where_the_old_policy_sampled(
    dtype: torch.dtype, told: bool, bounds: tuple[float, float]
) -> None:
    tokens = batch([400, 300], drift=0.8)
    flat = {name: getattr(tokens, name).detach().to(dtype) for name in ("logp", "old_logp", "advantage", "weight")}
    tokens = dataclasses.replace(tokens, **flat | {"logp": flat["logp"].requires_grad_()})
    moved = dataclasses.replace(tokens, behaviour_logp=tokens.old_logp if told else None)
    low, high = bounds
    one = moved_centre(moved, MovedCentre(clip_low=low, clip_high=high))
    other = token_clip(tokens, TokenClip(clip_low=low, clip_high=high))
    found = [
        (part.loss, *torch.autograd.grad(part.loss.sum(), tokens.logp), *part.hits.values()) for part in (one, other)
    ]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert all(hit.any() for hit in found[0][2:])


@settings(max_examples=50, deadline=None)
@given(old=log_probs, behaviour=log_probs, advantage=st.floats(-3.0, 3.0))
def test_p3_no_replayed_token_is_clipped_before_the_policy_moves(
    old: float, behaviour: float, advantage: float
) -> None:
    tokens = tokens_of([old], [old], [behaviour], [advantage])
    _, gradient = objective(tokens)
    assert gradient.item() == pytest.approx(math.exp(old - behaviour) * advantage, rel=1e-12)
    assert not any(hit.any() for hit in moved_centre(tokens, PLAIN).hits.values())


@settings(max_examples=50, deadline=None)
@given(theta=log_probs, old=log_probs, behaviour=log_probs, sign=st.sampled_from([-1.0, 1.0]))
def test_p4_the_gradient_ends_at_the_edge_on_the_side_of_the_advantage(
    theta: float, old: float, behaviour: float, sign: float
) -> None:
    ratio, centre = math.exp(theta - behaviour), math.exp(old - behaviour)
    beyond = ratio > centre + 0.2 if sign > 0 else ratio < centre - 0.2
    _, gradient = objective(tokens_of([theta], [old], [behaviour], [sign]))
    assert gradient.item() == pytest.approx(0.0 if beyond else sign * ratio, rel=1e-12)


def test_the_dual_clip_is_of_fresh_responses_unless_replayed_ones_have_their_own() -> None:
    log_four = math.log(4.0)
    for replayed, config, expected in (
        (False, MovedCentre(), -3.0),
        (True, MovedCentre(), -4.0),
        (True, MovedCentre(dual_clip_replayed=3.5), -3.5),
        (False, MovedCentre(dual_clip=None, dual_clip_replayed=3.5), -4.0),
    ):
        tokens = tokens_of([log_four - 2], [log_four - 2], [-2.0], [-1.0], replayed)
        assert objective(tokens, config)[0].item() == pytest.approx(expected, rel=1e-12)


def test_fresh_and_replayed_losses_are_normalised_apart_and_weighted(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-7 mixing: weighted vs concatenated token-mean (on lengths 3,3; off length 1)"]
    per_token = vector["J_on_per_token"] + vector["J_off_per_token"]
    lengths, sources, alpha = [3, 3, 1], [0, 0, 1], vector["alpha"]
    row = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    logp = torch.zeros(7, dtype=torch.float64)
    advantage = torch.tensor(per_token, dtype=torch.float64)[row]
    source = torch.tensor(sources)[row]
    tokens = TrainedTokens(
        logp, logp, None, None, advantage, torch.ones_like(logp), row, torch.tensor(lengths), source=source
    )
    cases: list[tuple[Any, list[float | None], float, str]] = [
        ("token_mean", [alpha], 1 - alpha, "weighted"),
        ("sequence_mean_token_mean", [None], 1.0, "concat_seq_mean"),
        ("token_mean", [None], 1.0, "concat_token_mean"),
    ]
    for aggregation, weights, own, key in cases:
        config = MovedCentre(kl_coefficient=0.0, aggregation=aggregation)
        normalisers = count_normalisers([1.0] * 3, lengths, sources, weights, own)
        assert -policy_loss(tokens, config, normalisers).loss.item() == pytest.approx(vector[key], abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(fresh=st.integers(1, 6), replayed=st.integers(1, 6), length=st.integers(1, 5), seed=st.integers(0, 99))
@pytest.mark.parametrize("aggregation", AGGREGATIONS[:3])
def test_p6_concatenation_is_the_weighted_mix_at_equal_lengths(
    aggregation: Any, fresh: int, replayed: int, length: int, seed: int
) -> None:
    count = fresh + replayed
    sources, lengths, alpha = [0] * fresh + [1] * replayed, [length] * count, replayed / count
    tokens = batch(lengths, seed)
    tokens = dataclasses.replace(tokens, source=torch.tensor(sources)[tokens.row])
    config = MovedCentre(aggregation=aggregation, entropy_coefficient=0.1)
    (weighted, one, _), (joined, other, _) = (
        step(tokens, [tokens], config, count_normalisers([1.0] * count, lengths, sources, weights, own))
        for weights, own in (([alpha], 1 - alpha), ([None], 1.0))
    )
    assert weighted == pytest.approx(joined, rel=1e-9)
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weights", [[0.125], [None]], ids=["weighted", "concat"])
def test_micro_batches_and_the_order_of_responses_change_nothing(weights: list[float | None]) -> None:
    tokens, config = mixed_batch(), MovedCentre(kl_coefficient=0.2, entropy_coefficient=0.1)
    normalisers = count_normalisers([1.0] * 5, LENGTHS, SOURCES, weights, 0.875)
    loss, gradient, (whole,) = step(tokens, [tokens], config, normalisers)
    parts = [rows_of(tokens, chunk.tolist()) for chunk in np.array_split([4, 1, 0, 3, 2], 3)]
    other_loss, other_gradient, results = step(tokens, parts, config, normalisers)
    assert other_loss == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(other_gradient, gradient, rtol=0, atol=1e-12)
    for name, total in whole.sums.items():
        assert sum(part.sums[name].item() for part in results) == pytest.approx(total.item(), abs=1e-12)
    for name, largest in whole.maxima.items():
        assert max(part.maxima[name].item() for part in results) == largest.item()


def test_kl_and_entropy_are_of_replayed_responses_too() -> None:
    tokens = dataclasses.replace(mixed_batch(), advantage=torch.zeros(sum(LENGTHS), dtype=torch.float64))
    config = MovedCentre(kl_coefficient=0.2)
    normalisers = count_normalisers([1.0] * 5, LENGTHS, SOURCES, [0.125], 0.875)
    _, gradient, _ = step(tokens, [tokens], config, normalisers)
    assert gradient.all()


def test_metrics_tell_the_distribution_of_the_centre_and_the_clips_of_replayed_tokens() -> None:
    centres, moves = [4.0, 0.1, 0.5, 1.0], [0.0, 0.0, 0.3, -0.3]
    old = [-1.0] * 4
    behaviour = [-1.0 - math.log(centre) for centre in centres]
    theta = [b + math.log(centre + move) for b, centre, move in zip(behaviour, centres, moves, strict=True)]
    tokens = tokens_of(theta, old, behaviour, [1.0, 1.0, 1.0, -1.0])
    parts = policy_loss(tokens, PLAIN, count_normalisers([1.0], [4], [1], [1.0]))
    found = {name.removeprefix("replayed_"): value.item() for name, value in parts.sums.items() if "replayed" in name}
    ratios = sum(centres) + sum(moves)
    expected = {"tokens": 4.0, "ratio_mean": ratios, "centre_mean": 5.6, "centre_low": 1.0, "clip_low": 1.0}
    distance = math.log(4.0) + math.log(10.0) + math.log(2.0)
    assert found == pytest.approx(expected | {"clip_high": 1.0, "centre_distance": distance})
    assert parts.maxima["replayed_centre"].item() == pytest.approx(4.0)
    assert (parts.sums["tokens"].item(), parts.maxima["ratio"].item()) == (0.0, 0.0)
