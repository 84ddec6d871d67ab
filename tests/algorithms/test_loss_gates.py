"""The covariance gates of an optimizer step: who may be chosen, how many, and on what the choice does not depend."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_tokens import batch, step
from numpy.typing import NDArray

from agentbench_rl.algorithms.losses import count_normalisers, needs_gate, policy_loss, step_gate
from agentbench_rl.config.loss import ClipCov, KlCov, TokenClip
from agentbench_rl.types import AgentRLError

LENGTHS = [3, 1, 8, 5, 13, 2, 9, 4]
CLIP_COV = ClipCov(share=0.1, cov_low=0.05, cov_high=1.0, kl_coefficient=0.0)
KL_COV = KlCov(share=0.1, kl_coefficient=0.0)
CONFIGS = [CLIP_COV, KL_COV]
Floats = NDArray[np.float64]


def signals(lengths: list[int], seed: int = 0) -> list[tuple[str, Floats, Floats, Floats]]:
    """Of every response its id, log-probs, old log-probs and advantages."""
    rng = np.random.default_rng(seed)
    rows = [(-rng.exponential(size=n), 0.2 * rng.normal(size=n), rng.normal()) for n in lengths]
    return [(f"turn{i}", logp, logp - drift, np.full(len(logp), a)) for i, (logp, drift, a) in enumerate(rows)]


def gates(config: ClipCov | KlCov, rows: list[tuple[str, Floats, Floats, Floats]], seed: int = 0) -> dict[str, list]:
    """The gate of every response by its id."""
    ids, logp, old, advantage = zip(*rows, strict=True)
    lengths = [len(values) for values in logp]
    flat = (np.concatenate(values) for values in (logp, old, advantage))
    gate = step_gate(config, *flat, lengths, ids, [seed, 1])
    return {key: part.tolist() for key, part in zip(ids, np.split(gate, np.cumsum(lengths)[:-1]), strict=True)}


def flat_gate(config: ClipCov | KlCov, rows: list[tuple[str, Floats, Floats, Floats]], seed: int = 0) -> NDArray:
    return np.concatenate([np.array(values) for values in gates(config, rows, seed).values()])


@pytest.mark.parametrize("config", CONFIGS)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 2**30))
@settings(max_examples=25, deadline=None)
def test_the_choice_does_not_depend_on_the_order_of_responses(
    config: ClipCov | KlCov, lengths: list[int], seed: int
) -> None:
    rows = signals(lengths, seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert gates(config, rows, seed) == gates(config, [rows[index] for index in order], seed)


def test_equal_covariances_are_told_apart_by_the_draw_and_not_by_their_place() -> None:
    rows = [(f"turn{i}", np.full(4, -1.0 - i % 2), np.zeros(4), np.full(4, 1.0 - 2 * (i % 2))) for i in range(10)]
    chosen = [gates(KL_COV, some, 3) for some in (rows, rows[::-1])]
    assert chosen[0] == chosen[1]
    assert sum(map(sum, chosen[0].values())) == 4


def covariance(rows: list[tuple[str, Floats, Floats, Floats]]) -> Floats:
    logp, advantage = (np.concatenate([row[column] for row in rows]) for column in (1, 3))
    return (advantage - advantage.mean()) * (logp - logp.mean())


def test_kl_cov_takes_the_share_of_largest_covariance() -> None:
    rows = signals(LENGTHS)
    gate, values = flat_gate(KL_COV, rows), covariance(rows)
    assert gate.sum() == int(0.1 * sum(LENGTHS)) == 4
    assert values[gate].min() > values[~gate].max()


def test_clip_cov_draws_the_share_among_unclipped_tokens_within_the_bounds() -> None:
    rows = signals(LENGTHS)
    values, a = covariance(rows), np.concatenate([row[3] for row in rows])
    ratio = np.exp(np.concatenate([row[1] - row[2] for row in rows]))
    clipped = ((a > 0) & (ratio > 1.2)) | ((a < 0) & (ratio < 0.8))
    candidates = ~clipped & (values > 0.05) & (values < 1.0)
    drawn = np.zeros(len(a))
    for seed in range(400):
        gate = flat_gate(CLIP_COV, rows, seed)
        assert gate.sum() == 4
        assert not gate[~candidates].any()
        drawn += gate
    expected = 400 * 4 / candidates.sum()
    assert np.abs(drawn[candidates] - expected).max() < 5 * np.sqrt(expected)


def test_fewer_candidates_than_the_share_are_all_taken_and_none_is_none() -> None:
    rows = signals(LENGTHS)
    top = np.sort(covariance(rows))[-3:].mean()
    few = CLIP_COV.model_copy(update={"share": 1.0, "cov_low": float(top), "cov_high": 100.0, "clip_high": 9.0})
    values = covariance(rows)
    np.testing.assert_array_equal(flat_gate(few.model_copy(update={"clip_low": 1.5}), rows), values > top)
    assert not flat_gate(CLIP_COV.model_copy(update={"cov_low": 90.0, "cov_high": 99.0}), rows).any()


@pytest.mark.parametrize("config", CONFIGS)
def test_a_tiny_share_is_one_token(config: ClipCov | KlCov) -> None:
    assert flat_gate(config.model_copy(update={"share": 1e-9}), signals(LENGTHS)).sum() == 1


@pytest.mark.parametrize("config", CONFIGS)
def test_every_source_has_a_gate_of_its_own(config: ClipCov | KlCov) -> None:
    own, replayed = signals(LENGTHS, 1), signals(LENGTHS[::-1], 2)
    mixed = [row for pair in zip(own, [(f"old {row[0]}", *row[1:]) for row in replayed], strict=True) for row in pair]
    ids, logp, old, advantage = zip(*mixed, strict=True)
    flat = [np.concatenate(values) for values in (logp, old, advantage)]
    lengths, sources = [len(values) for values in logp], [index % 2 for index in range(len(mixed))]
    gate = step_gate(config, *flat, lengths, ids, [0, 1], sources)
    found = dict(zip(ids, (part.tolist() for part in np.split(gate, np.cumsum(lengths)[:-1])), strict=True))
    assert found == gates(config, own) | gates(config, [row for row in mixed if row[0].startswith("old")])


def test_the_gate_takes_the_loss_or_adds_the_distance() -> None:
    tokens = batch([4, 5])
    plain = {name: dataclasses.replace(tokens, gate=tokens.gate & False) for name in ("clip", "kl")}
    normalisers = count_normalisers([1.0, 1.0], [4, 5])
    _, clip_gradient, _ = step(tokens, [tokens], CLIP_COV, normalisers)
    _, without, _ = step(tokens, [plain["clip"]], CLIP_COV, normalisers)
    gate = tokens.gate
    assert not clip_gradient[gate].any()
    assert (clip_gradient[~gate] == without[~gate]).all()
    _, kl_gradient, _ = step(tokens, [tokens], KL_COV, normalisers)
    _, without, _ = step(tokens, [plain["kl"]], KL_COV, normalisers)
    sign = (tokens.logp - tokens.old_logp).detach().sign()
    np.testing.assert_allclose(kl_gradient - without, np.where(gate, sign / 9, 0.0), atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_loss_that_needs_a_gate_says_so(config: ClipCov | KlCov) -> None:
    assert needs_gate(config)
    assert not needs_gate(TokenClip())
    with pytest.raises(AgentRLError, match="gate of the whole optimizer step"):
        policy_loss(dataclasses.replace(batch([3]), gate=None), config, count_normalisers([1.0], [3]))
