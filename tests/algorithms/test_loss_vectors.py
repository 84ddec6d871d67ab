"""The worked numbers of the clipped loss, the KL estimators and the aggregations at 1e-6."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch

from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.algorithms.losses.token_clip import token_clip
from agentbench_rl.config.loss import LossConfig, TokenClip

CLOSE = {"rtol": 0, "atol": 1e-6}


def flat(ratio: list[list[float]], advantage: list[list[float]]) -> TrainedTokens:
    lengths = torch.tensor([len(row) for row in ratio])
    logp = torch.tensor(list(chain(*ratio)), dtype=torch.float64).log().requires_grad_()
    return TrainedTokens(
        logp=logp,
        old_logp=torch.zeros_like(logp),
        reference_logp=None,
        entropy=None,
        advantage=torch.tensor(list(chain(*advantage)), dtype=torch.float64),
        weight=torch.ones_like(logp),
        row=torch.repeat_interleave(torch.arange(len(ratio)), lengths),
        lengths=lengths,
    )


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_clipped_loss_and_gradient(vectors: dict[str, Any], advantage: float) -> None:
    vector = vectors[f"PPO-1 clipped loss per token, A={advantage}, eps=0.2, dual=3"]
    tokens = flat([vector["ratio"]], [[advantage] * len(vector["ratio"])])
    loss = token_clip(tokens, TokenClip()).loss
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(vector["loss"], dtype=torch.float64), **CLOSE)
    expected = torch.tensor(vector["dloss_dlogp"], dtype=torch.float64)
    torch.testing.assert_close(tokens.logp.grad, expected, **CLOSE)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators(vectors: dict[str, Any], estimator: Any) -> None:
    vector = vectors["KL estimators"]
    difference = torch.tensor(vector["logp_minus_ref"], dtype=torch.float64)
    estimate = kl_estimate(difference, torch.zeros_like(difference), estimator)
    torch.testing.assert_close(estimate, torch.tensor(vector[estimator], dtype=torch.float64), **CLOSE)


AGGREGATIONS = {
    "token_mean": "token_mean",
    "seq_mean_token_mean": "sequence_mean_token_mean",
    "seq_mean_token_sum": "sequence_mean_token_sum",
    "drgrpo_norm3": "sequence_mean_token_sum_norm",
    "norm4": "sequence_mean_token_sum_norm",
}


def loss_config(key: str, clip_high: float = 0.2) -> LossConfig:
    constant = float(key[-1]) if "norm" in key else None
    return TokenClip.model_validate(
        {
            "aggregation": AGGREGATIONS[key],
            "norm_constant": constant,
            "clip_high": clip_high,
            "dual_clip": None,
            "kl_coefficient": 0.0,
        }
    )


@pytest.mark.parametrize("key", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "drgrpo_norm3"])
@pytest.mark.parametrize(
    ("name", "clip_high"),
    [("DAPO-1 symmetric 0.2/0.2", 0.2), ("DAPO-1 clip-higher 0.2/0.28", 0.28)],
)
def test_asymmetric_clip_and_aggregation(vectors: dict[str, Any], name: str, clip_high: float, key: str) -> None:
    vector = vectors[name]
    kept = [[bool(entry) for entry in row] for row in vector["mask"]]
    ratio, advantage, expected = (
        [[value for value, keep in zip(row, mask, strict=True) if keep] for row, mask in zip(rows, kept, strict=True)]
        for rows in (vector["ratio"], vector["A"], vector["token_loss"])
    )
    tokens, config = flat(ratio, advantage), loss_config(key, clip_high)
    per_token = token_clip(tokens, config).loss.detach()
    torch.testing.assert_close(per_token, torch.tensor(list(chain(*expected)), dtype=torch.float64), **CLOSE)
    parts = policy_loss(tokens, config, count_normalisers([1.0, 1.0], tokens.lengths.tolist()))
    assert parts.loss.item() == pytest.approx(vector[key], abs=1e-6)


@pytest.mark.parametrize("key", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "norm4"])
def test_length_bias_of_aggregations(vectors: dict[str, Any], key: str) -> None:
    vector = vectors["DAPO-4 aggregation length bias (short success -1/token x1, long failure +1/token x4)"]
    tokens = flat([[1.0], [1.0] * 4], [[1.0], [-1.0] * 4])
    parts = policy_loss(tokens, loss_config(key), count_normalisers([1.0, 1.0], [1, 4]))
    assert parts.loss.item() == pytest.approx(vector[key], abs=1e-6)
