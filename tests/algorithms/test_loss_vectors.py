"""The worked numbers of the policy losses, the value loss, the KL estimators and the aggregations at 1e-6."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pytest
import torch

from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss, value_loss
from agentbench_rl.algorithms.losses.cispo import cispo
from agentbench_rl.algorithms.losses.gmpo import gmpo
from agentbench_rl.algorithms.losses.kl import kl_estimate
from agentbench_rl.algorithms.losses.ratios import token_ratio
from agentbench_rl.algorithms.losses.sapo import sapo
from agentbench_rl.algorithms.losses.sequence_clip import sequence_clip
from agentbench_rl.algorithms.losses.token_clip import token_clip
from agentbench_rl.config.loss import Cispo, Gmpo, LossConfig, Sapo, SequenceClip, TokenClip

CLOSE = {"rtol": 0, "atol": 1e-6}


def close(found: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), **CLOSE)


def responses(logp: list[list[float]], old: list[list[float]], advantage: list[list[float]]) -> TrainedTokens:
    lengths = torch.tensor([len(row) for row in logp])
    flat_logp = torch.tensor(list(chain(*logp)), dtype=torch.float64).requires_grad_()
    return TrainedTokens(
        logp=flat_logp,
        old_logp=torch.tensor(list(chain(*old)), dtype=torch.float64),
        reference_logp=None,
        entropy=None,
        advantage=torch.tensor(list(chain(*advantage)), dtype=torch.float64),
        weight=torch.ones_like(flat_logp),
        row=torch.repeat_interleave(torch.arange(len(logp)), lengths),
        lengths=lengths,
    )


def flat(ratio: list[list[float]], advantage: list[list[float]]) -> TrainedTokens:
    return responses([[math.log(x) for x in row] for row in ratio], [[0.0] * len(row) for row in ratio], advantage)


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
    if key == "drgrpo_norm3":  # the older variant doesn't divide by the number of rows
        assert parts.loss.item() * len(ratio) == pytest.approx(vector["verl_agent_norm_variant"], abs=1e-6)


@pytest.mark.parametrize("key", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "norm4"])
def test_length_bias_of_aggregations(vectors: dict[str, Any], key: str) -> None:
    vector = vectors["DAPO-4 aggregation length bias (short success -1/token x1, long failure +1/token x4)"]
    tokens = flat([[1.0], [1.0] * 4], [[1.0], [-1.0] * 4])
    parts = policy_loss(tokens, loss_config(key), count_normalisers([1.0, 1.0], [1, 4]))
    assert parts.loss.item() == pytest.approx(vector[key], abs=1e-6)


def test_value_loss_is_clipped_and_has_no_half(vectors: dict[str, Any]) -> None:
    vector = vectors["PPO-2 value loss clip 0.5 (no 0.5 factor)"]
    new, old, target = (torch.tensor(vector[key], dtype=torch.float64) for key in ("v_new", "v_old", "ret"))
    per_token = value_loss(new, old, target, 0.5)
    close(per_token, vector["per_token"])
    assert per_token.mean().item() == pytest.approx(vector["mean"], abs=1e-6)
    close(value_loss(new, old, target, None), (new - target).square().tolist())


GSPO = SequenceClip(aggregation="sequence_mean_token_mean", kl_coefficient=0.0)


def gspo_1(vectors: dict[str, Any], advantage: list[float]) -> TrainedTokens:
    """The two responses of 3 and 2 tokens."""
    vector = vectors["GSPO-1 sequence ratio"]
    kept = [sum(map(bool, row)) for row in vector["mask"]]
    logp, old = ([row[:n] for row, n in zip(vector[key], kept, strict=True)] for key in ("logp", "old"))
    return responses(logp, old, [[value] * n for value, n in zip(advantage, kept, strict=True)])


def test_sequence_ratio(vectors: dict[str, Any]) -> None:
    vector, tokens = vectors["GSPO-1 sequence ratio"], gspo_1(vectors, [1.0, 1.0])
    first = torch.tensor([0, 3])
    close(sequence_clip(tokens, GSPO).ratio[first], vector["s"])
    close(sequence_clip(tokens, SequenceClip(pooling="sum")).ratio[first], vector["full_seq_ratio"])
    close(token_ratio(tokens), vector["token_ratios"][0] + vector["token_ratios"][1][:2])


def test_sequence_loss_beyond_the_bounds_has_no_gradient(vectors: dict[str, Any]) -> None:
    vector, tokens = vectors["GSPO-2 loss, A=[1,-1], eps 3e-4/4e-4"], gspo_1(vectors, [1.0, -1.0])
    part = sequence_clip(tokens, GSPO)
    close(part.ratio[[0, 3]], vector["s"])
    close(part.loss[[0, 3]], vector["loss"])
    assert (part.hits["clip_high"] | part.hits["clip_low"])[[0, 3]].tolist() == vector["clipped"]
    parts = policy_loss(tokens, GSPO, count_normalisers([1.0, 1.0], [3, 2]))
    parts.loss.backward()
    assert parts.loss.item() == pytest.approx(vector["mean"], abs=1e-6)
    assert not tokens.logp.grad.any()


def test_sequence_loss_and_gradient(vectors: dict[str, Any]) -> None:
    vector, tokens = vectors["GSPO-2b loss, A=[-1,1]"], gspo_1(vectors, [-1.0, 1.0])
    close(sequence_clip(tokens, GSPO).loss[[0, 3]], vector["loss"])
    parts = policy_loss(tokens, GSPO, count_normalisers([1.0, 1.0], [3, 2]))
    parts.loss.backward()
    assert parts.loss.item() == pytest.approx(vector["mean"], abs=1e-6)
    close(tokens.logp.grad * 2, list(chain(*vector["dloss_dlogp"])))


def test_sequence_loss_on_policy(vectors: dict[str, Any]) -> None:
    vector = vectors["GSPO-3 on-policy identity"]
    tokens = responses([[-1.0, -2.0], [-0.5]], [[-1.0, -2.0], [-0.5]], [[2.0, 2.0], [-3.0]])
    part = sequence_clip(tokens, GSPO)
    close(part.ratio[[0, 2]], vector["s"])
    close(part.loss[[0, 2]], vector["loss_A_2_m3"])


def test_sequence_ratio_does_not_grow_with_the_length(vectors: dict[str, Any]) -> None:
    vector = vectors["GSPO-4 length normalisation: same per-token drift 0.01, lengths 2 and 200"]
    tokens = responses([[-1.0] * 2, [-1.0] * 200], [[-1.01] * 2, [-1.01] * 200], [[1.0] * 2, [1.0] * 200])
    close(sequence_clip(tokens, GSPO).ratio[[0, 2]], vector["s"])
    close(sequence_clip(tokens, SequenceClip(pooling="sum")).ratio[[0, 2]], vector["unnormalised"])


def test_sequence_ratio_with_an_advantage_per_token(vectors: dict[str, Any]) -> None:
    vector = vectors["GSPO-5 GSPO-token with per-token advantages [1,2,-1], eps 0.2"]
    source = vectors["GSPO-1 sequence ratio"]
    tokens = responses(source["logp"][:1], source["old"][:1], [[1.0, 2.0, -1.0]])
    config = GSPO.model_copy(update={"clip_low": 0.2, "clip_high": 0.2})
    part = sequence_clip(tokens, config)
    close(part.ratio, [vector["s"]] * 3)
    close(part.loss, vector["token_loss"])
    parts = policy_loss(tokens, config, count_normalisers([1.0], [3]))
    parts.loss.backward()
    assert parts.loss.item() == pytest.approx(vector["seq_mean"], abs=1e-6)
    close(tokens.logp.grad, vector["dloss_dlogp_before_mean"])


def test_turn_ratio_by_mean_and_by_sum(vectors: dict[str, Any]) -> None:
    vector = vectors["Turn-ratio-1 token log-ratios .1,-.3 | .5,.2"]
    tokens = responses([[0.1, -0.3], [0.5, 0.2]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]])
    for pooling in ("mean", "sum"):
        close(sequence_clip(tokens, SequenceClip(pooling=pooling)).ratio[[0, 2]], vector[f"{pooling}_pooled"])


def test_clipped_weight_of_the_log_prob(vectors: dict[str, Any]) -> None:
    vector = vectors["CISPO-1 eps_low=1, eps_high=0.2"]
    logp = [-loss / weight for loss, weight in zip(vector["loss_A1"], vector["weight"], strict=True)]
    old = [x - math.log(ratio) for x, ratio in zip(logp, vector["ratio"], strict=True)]
    tokens = responses([logp], [old], [[1.0] * 3])
    loss = cispo(tokens, Cispo(clip_low=1.0, clip_high=0.2)).loss
    loss.sum().backward()
    close(loss, vector["loss_A1"])
    close(tokens.logp.grad, vector["dloss_dlogp_A1"])


def test_sigmoid_gate(vectors: dict[str, Any]) -> None:
    vector = vectors["SAPO-1 gate tau_pos=1.0 tau_neg=1.05"]
    for sign, key in ((1.0, "f_pos"), (-1.0, "f_neg")):
        loss = sapo(flat([vector["ratio"]], [[sign] * 3]), Sapo()).loss
        close(-sign * loss, vector[key])


@pytest.mark.parametrize("advantage", [1, -1])
def test_geometric_mean_ratio(vectors: dict[str, Any], advantage: int) -> None:
    vector = vectors[f"GMPO-1 A={advantage}, log clip +-0.4"]
    tokens = responses([vector["log_ratio"]], [[0.0] * 3], [[float(advantage)] * 3])
    part = gmpo(tokens, Gmpo())
    close(part.ratio, [vector["ratio"]] * 3)
    close(part.loss, [vector["loss"]] * 3)
    part.loss.mean().backward()
    moved = [used != given for used, given in zip(vector["used"], vector["log_ratio"], strict=True)]
    close(tokens.logp.grad, [0.0 if clipped else -advantage * vector["ratio"] / 3 for clipped in moved])


def test_sequence_mask(vectors: dict[str, Any]) -> None:
    vector = vectors["SeqMask-1 drop if A<0 and mean log(pi_old/pi_theta)>0.223"]
    drifts, advantages = vector["mean_log_old_over_new"], vector["A"]
    logp = [[-1.0 - drift - 0.05, -1.0 - drift + 0.05] for drift in drifts]
    tokens = responses(logp, [[-1.0, -1.0]] * 3, [[float(value)] * 2 for value in advantages])
    config = TokenClip(kl_coefficient=0.0, clip_low=0.9, sequence_mask=0.223)
    parts = policy_loss(tokens, config, count_normalisers([1.0] * 3, [2] * 3))
    parts.loss.backward()
    assert (tokens.logp.grad != 0).tolist() == [keep for keep in vector["keep"] for _ in range(2)]
    assert parts.sums["sequence_mask"].item() == 2 * vector["keep"].count(False)
    ratio = (tokens.logp - tokens.old_logp).detach().exp()
    close(tokens.logp.grad[:2], (ratio[:2] / 6).tolist())
