"""Losses over a whole optimizer step: tokens chosen by a gate, and replayed responses as a loss of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agentbench_rl.config.loss import ClipCov, EntropyClip, KlCov, LossConfig, MovedCentre, TokenClip
from agentbench_rl.training.gradients import accumulate_gradients, loss_metrics
from agentbench_rl.training.packing import row_batches
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import training_signals
from agentbench_rl.training.trainer import trained_sequences
from agentbench_rl.types import AgentRLError
from tests.training.models import chains, tiny_model
from tests.training.updates import TRAINING, advantages_of, score_rollouts, scores_of, update, weights

GATED: list[LossConfig] = [
    ClipCov(share=0.3, cov_low=-0.5, cov_high=50.0, kl_coefficient=0),
    KlCov(share=0.2, kl_coefficient=0),
]
#: Of the replayed responses. Some norms of the model are computed in float32: only a power of two scales exactly.
WEIGHT = 0.25


@pytest.mark.parametrize("loss", GATED, ids=["clip_cov", "kl_cov"])
def test_the_tokens_of_a_gate_do_not_depend_on_micro_batches(loss: LossConfig) -> None:
    found = []
    for micro_batch_tokens in (64, 4096):
        model = tiny_model()
        rollouts = chains([3, 5, 1, 4])
        training = TRAINING.model_copy(update={"micro_batch_tokens": micro_batch_tokens, "minibatches": 2})
        result = update(model, rollouts, loss=loss, training=training)
        found.append((result.steps[1]["gate"], torch.cat([value.flatten() for value in weights(model)])))
    assert 0 < found[0][0] < 0.5
    torch.testing.assert_close(found[0], found[1], atol=1e-9, rtol=0)


def test_the_pass_that_chooses_the_tokens_is_paid_for() -> None:
    plain, gated = (update(tiny_model(), chains([3, 5]), loss=loss) for loss in (TokenClip(), GATED[0]))
    assert gated.steps[0]["processed_tokens"] == 2 * plain.steps[0]["processed_tokens"]


def test_log_probs_that_are_not_finite_are_told_before_a_gate_is_chosen() -> None:
    model, rollouts = tiny_model(), chains([2, 3])
    scores = scores_of(model, rollouts)
    with torch.no_grad():
        model.lm_head.weight[5] = np.nan
    result = update(model, rollouts, scores=scores, loss=GATED[0])
    assert result.states["policy"].skipped == 1


def replayed(model: Any) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Replayed responses under ids of their own: rollouts, their advantages, and their old log-probs."""
    rollouts = chains([2, 3, 2], seed=9)
    for name in ("turn_id", "parent_id"):
        rollouts[name] = "old-" + rollouts[name]
    scores = scores_of(model, rollouts, 0.2)
    advantages = advantages_of(rollouts).assign(
        source="replay", source_weight=WEIGHT, old_logprobs=scores["old_logprobs"]
    )
    return rollouts, advantages, scores


def gradient(
    model: Any, rollouts: pd.DataFrame, scores: pd.DataFrame, advantages: pd.DataFrame, loss: LossConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    signals = training_signals(rollouts, scores, advantages, "recompute", reference=loss.kl_coefficient > 0)
    batches = row_batches(trained_sequences(training_sequences(rollouts), signals), 100)
    model.zero_grad()
    metrics = loss_metrics(accumulate_gradients({"policy": model}, {"policy": batches}, signals, loss, "float32"))
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), metrics


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean"])
def test_replayed_responses_add_a_loss_of_their_own_without_kl_and_entropy(aggregation: Any) -> None:
    model = tiny_model()
    rollouts = chains([3, 5, 1, 4])
    scores, advantages = scores_of(model, rollouts, 0.1), advantages_of(rollouts)
    old_rollouts, old_advantages, old_scores = replayed(model)
    loss = TokenClip(aggregation=aggregation, kl_coefficient=0.1, entropy_coefficient=0.01)
    bare = TokenClip(aggregation=aggregation, kl_coefficient=0)
    own, own_metrics = gradient(model, rollouts, scores, advantages, loss)
    again, _ = gradient(model, old_rollouts, old_scores, old_advantages.drop(columns=["source", "source_weight"]), bare)
    both, metrics = gradient(
        model,
        pd.concat([rollouts, old_rollouts], ignore_index=True),
        scores,
        pd.concat([advantages, old_advantages], ignore_index=True),
        loss,
    )
    torch.testing.assert_close(both, own + WEIGHT * again, atol=1e-10, rtol=0)
    assert (again * WEIGHT).abs().max() > 1e-3
    assert metrics["ratio_mean"] == pytest.approx(own_metrics["ratio_mean"])
    assert metrics["loss"] == pytest.approx(own_metrics["loss"] + metrics["loss_replay"])


def test_replayed_responses_that_the_old_policy_itself_sampled_are_like_the_others() -> None:
    model, rollouts = tiny_model(), chains([3, 5, 1, 4])
    scores, advantages = scores_of(model, rollouts, 0.3), advantages_of(rollouts)
    plain, metrics = gradient(model, rollouts, scores, advantages, TokenClip(kl_coefficient=0.1))
    again = [number % 3 == 0 for number in range(len(rollouts))]
    marked = advantages.assign(
        source=["replay" if one else None for one in again],
        behaviour_logprobs=[old if one else None for old, one in zip(scores["old_logprobs"], again, strict=True)],
    )
    loss = MovedCentre(kl_coefficient=0.1, dual_clip_replayed=3.0)
    moved, parts = gradient(model, rollouts, scores, marked, loss)
    torch.testing.assert_close(moved, plain, atol=1e-12, rtol=0)
    assert parts["loss"] == pytest.approx(metrics["loss"])
    assert parts["loss_replay"] != 0
    assert (parts["replayed_centre_mean"], parts["replayed_centre_max"], parts["replayed_centre_low"]) == (1, 1, 0)


def test_an_update_of_replayed_responses_alone_is_possible() -> None:
    model = tiny_model()
    rollouts, advantages, _ = replayed(model)
    nothing = scores_of(model, chains([1]))
    step = update(model, rollouts, scores=nothing, advantages=advantages, loss=TokenClip()).steps[0]
    assert step["optimizer_steps"] == 1
    assert step["loss_replay"] == pytest.approx(step["loss"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old_logprobs": None}, "old log-probs of turn old-e0-0: absent"),
        ({"source_weight": np.nan}, "source_weight of turn old-e0-0 is nan"),
        ({"source_weight": -1.0}, "source_weight of turn old-e0-0 is -1.0"),
    ],
)
def test_replayed_responses_without_what_they_bring_are_refused(changes: dict[str, Any], message: str) -> None:
    model = tiny_model()
    rollouts, advantages, scores = replayed(model)
    with pytest.raises(AgentRLError, match=message):
        update(model, rollouts, scores=scores, advantages=advantages.assign(**changes))


def test_entropy_scores_reach_the_loss_and_are_refused_when_absent() -> None:
    found = []
    for sign in (1.0, -1.0):
        model, rollouts = tiny_model(), chains([3, 4])
        scores = scores_of(model, rollouts, -0.5)  # all ratios lie above the clip
        column = [np.full(len(ids), sign) for ids in rollouts["response_ids"]]
        advantages = advantages_of(rollouts).assign(advantage=1.0, entropy_scores=column)
        found.append(update(model, rollouts, scores=scores, advantages=advantages, loss=EntropyClip()).steps[0])
    assert (found[0]["clip_kept"], found[1]["clip_high"]) == (1.0, 1.0)
    with pytest.raises(AgentRLError, match="entropy_scores of turn e0-0: absent"):
        update(tiny_model(), chains([3]), loss=EntropyClip())


def test_old_logprobs_of_the_sampler_serve_this_iteration_and_stored_ones_the_replayed() -> None:
    model, rollouts = tiny_model(), chains([3, 4])
    rollouts["response_logprobs"] = list(score_rollouts(model, rollouts, 4096).values())
    old_rollouts, old_advantages, _ = replayed(model)
    step = update(
        model,
        pd.concat([rollouts, old_rollouts], ignore_index=True),
        scores=None,
        advantages=pd.concat([advantages_of(rollouts), old_advantages], ignore_index=True),
        loss=TokenClip(kl_coefficient=0),
        old_logprobs="sampler",
    ).steps[0]
    assert step["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
