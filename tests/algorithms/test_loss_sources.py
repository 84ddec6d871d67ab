"""Responses of several sources in one optimizer step: each source is a loss of its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from loss_tokens import AGGREGATIONS, batch, rows_of, step

from agentbench_rl.algorithms.losses import Normalisers, TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.config.loss import LossConfig, TokenClip
from agentbench_rl.types import AgentRLError

LENGTHS = [4, 2, 7, 1, 5, 3, 6]
SOURCES = [0, 1, 0, 2, 1, 0, 1]
WEIGHTS = [1.0, 2.0, 1.5, 1.0, 0.5, 1.0, 1.0]
SOURCE_WEIGHTS = [0.3, 0.7]


def mixed() -> TrainedTokens:
    """Tokens whose replayed responses have no reference log-probs."""
    tokens = batch(LENGTHS, seed=5, weights=WEIGHTS)
    source = torch.tensor(SOURCES)[tokens.row]
    reference = torch.where(source == 0, tokens.reference_logp, torch.nan)
    return dataclasses.replace(tokens, source=source, reference_logp=reference)


def loss_config(aggregation: str) -> LossConfig:
    constant = 7.0 if aggregation.endswith("norm") else None
    return TokenClip.model_validate(
        {
            "aggregation": aggregation,
            "norm_constant": constant,
            "kl_coefficient": 0.2,
            "entropy_coefficient": 0.1,
            "sequence_mask": 0.1,
        }
    )


def of_source(source: int) -> list[int]:
    return [row for row, of in enumerate(SOURCES) if of == source]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_loss_is_the_own_loss_plus_the_weighted_losses_of_the_others(aggregation: str) -> None:
    tokens, config = mixed(), loss_config(aggregation)
    normalisers = count_normalisers(WEIGHTS, LENGTHS, SOURCES, SOURCE_WEIGHTS)
    loss, gradient, (whole,) = step(tokens, [tokens], config, normalisers)
    expected, expected_gradient = 0.0, torch.zeros_like(gradient)
    alone = config.model_copy(update={"kl_coefficient": 0.0, "entropy_coefficient": 0.0})
    for source, weight in enumerate([1.0, *SOURCE_WEIGHTS]):
        rows = of_source(source)
        part = dataclasses.replace(rows_of(tokens, rows), source=None)
        counted = count_normalisers([WEIGHTS[row] for row in rows], [LENGTHS[row] for row in rows])
        value, found, (parts,) = step(tokens, [part], alone if source else config, counted)
        expected += weight * value
        expected_gradient += weight * found
        if source == 0:
            assert {name: whole.sums[name].item() for name in whole.sums} == pytest.approx(
                {name: total.item() for name, total in parts.sums.items()}, abs=1e-12
            )
            assert whole.maxima["ratio"].item() == parts.maxima["ratio"].item()
            assert whole.objective["policy"].item() == pytest.approx(parts.objective["policy"].item(), abs=1e-12)
    assert loss == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)
    assert sum(value.item() for value in whole.objective.values()) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("pieces", [2, 4, 7])
def test_sources_may_fall_into_any_micro_batches(aggregation: str, pieces: int) -> None:
    tokens, config = mixed(), loss_config(aggregation)
    normalisers = count_normalisers(WEIGHTS, LENGTHS, SOURCES, SOURCE_WEIGHTS)
    whole_loss, whole_gradient, (whole,) = step(tokens, [tokens], config, normalisers)
    order = np.random.default_rng(pieces).permutation(len(LENGTHS))
    parts = [rows_of(tokens, chunk.tolist()) for chunk in np.array_split(order, pieces)]
    loss, gradient, results = step(tokens, parts, config, normalisers)
    assert loss == pytest.approx(whole_loss, abs=1e-10)
    torch.testing.assert_close(gradient, whole_gradient, rtol=0, atol=1e-10)
    for name, total in whole.objective.items():
        assert sum(part.objective[name].item() for part in results) == pytest.approx(total.item(), abs=1e-10)


def test_replayed_responses_get_neither_kl_nor_entropy_gradient() -> None:
    tokens, config = mixed(), loss_config("token_mean").model_copy(update={"sequence_mask": None})
    tokens = dataclasses.replace(tokens, advantage=torch.zeros_like(tokens.advantage))
    normalisers = count_normalisers(WEIGHTS, LENGTHS, SOURCES, SOURCE_WEIGHTS)
    _, gradient, _ = step(tokens, [tokens], config, normalisers)
    assert not gradient[tokens.source > 0].any()
    assert gradient[tokens.source == 0].all()


def test_the_same_numbers_as_without_sources_when_all_are_of_this_iteration() -> None:
    plain = batch(LENGTHS, weights=WEIGHTS)
    marked = dataclasses.replace(plain, source=torch.zeros_like(plain.row))
    counted = count_normalisers(WEIGHTS, LENGTHS, [0] * len(LENGTHS), SOURCE_WEIGHTS)
    alone = count_normalisers(WEIGHTS, LENGTHS)
    assert (counted.tokens, counted.sequences) == (alone.tokens, alone.sequences)
    config = loss_config("token_mean")
    losses = [policy_loss(plain, config, alone).loss.item(), policy_loss(marked, config, counted).loss.item()]
    assert losses[0] == losses[1]


def test_a_step_of_replayed_responses_only_is_their_weighted_loss() -> None:
    tokens = dataclasses.replace(batch([3, 4]), source=torch.ones(7, dtype=torch.int64))
    config = loss_config("token_mean")
    parts = policy_loss(tokens, config, count_normalisers([1.0, 1.0], [3, 4], [1, 1], [0.25]))
    alone = config.model_copy(update={"kl_coefficient": 0.0, "entropy_coefficient": 0.0})
    single = policy_loss(dataclasses.replace(tokens, source=None), alone, count_normalisers([1.0, 1.0], [3, 4]))
    assert parts.loss.item() == pytest.approx(0.25 * single.loss.item(), abs=1e-15)
    assert parts.sums["tokens"].item() == 0.0


def test_normalisers_count_every_source_by_itself() -> None:
    found = count_normalisers([1.0, 2.0, 1.0, 1.0], [3, 4, 0, 5], [0, 1, 0, 1], [0.5, 0.25])
    expected = Normalisers(3.0, 1.0, others=(Normalisers(13.0, 3.0, 0.5), Normalisers(0.0, 0.0, 0.25)))
    assert found == expected
    with pytest.raises(AgentRLError, match="positive loss weight"):
        count_normalisers([0.0, 1.0], [3, 0], [0, 1], [1.0])
