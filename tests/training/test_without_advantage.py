"""Responses without advantage: they count in every normaliser, and are left out of the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.config.loss import (
    Cispo,
    ClipCov,
    Dppo,
    EntropyClip,
    Gmpo,
    KlCov,
    LossConfig,
    MovedCentre,
    PolicyGradient,
    Sapo,
    SequenceClip,
    SetClip,
    TokenClip,
)
from agentbench_rl.policies.critic import build_critic
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.critic import CriticInTraining
from agentbench_rl.training.gradients import accumulate_gradients, loss_metrics
from agentbench_rl.training.packing import row_batches
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import training_signals
from agentbench_rl.training.trainer import UpdateResult, trained_sequences, update_policy
from tests.training.models import chains, tiny_model
from tests.training.team import event_advantages, flat_gradient, team_rollouts
from tests.training.updates import TRAINING, advantages_of, same, scores_of, update, weights

LOSSES: list[LossConfig] = [
    TokenClip(kl_coefficient=0, aggregation="sequence_mean_token_mean"),
    TokenClip(kl_coefficient=0, sequence_mask=0.05),
    MovedCentre(kl_coefficient=0, dual_clip_replayed=3.0),
    EntropyClip(kl_coefficient=0),
    SequenceClip(kl_coefficient=0),
    Cispo(kl_coefficient=0),
    Sapo(kl_coefficient=0),
    Gmpo(kl_coefficient=0, aggregation="sequence_mean_token_mean"),
    ClipCov(share=0.3, cov_low=-0.5, cov_high=50.0, kl_coefficient=0),
    KlCov(share=0.2, kl_coefficient=0),
    Dppo(kl_coefficient=0),
    PolicyGradient(kl_coefficient=0),
    SetClip(reduction="token"),
    TokenClip(kl_coefficient=0.1),
    SetClip(entropy_coefficient=0.02),
]
#: Every response is computed: some have a gradient although they have no advantage.
SPEAKING = {"KlCov", "TokenClip kl", "SetClip entropy"}
EVENT_METRICS = ("events", "set_size", "ratio_mean", "ratio_max", "log_ratio_abs_mean", "clip_share", "clip_share_k4")
#: Large steps would hide the gradient, which is read from the optimizer's first moment.
PLAIN = TRAINING.model_copy(update={"gradient_clip": 1e9})


def name_of(loss: LossConfig) -> str:
    terms = [term for term in ("kl", "entropy") if getattr(loss, f"{term}_coefficient")]
    return " ".join([type(loss).__name__, *terms])


def shared_chains() -> pd.DataFrame:
    """Chains in two groups that share their first prompt."""
    rollouts = chains([3, 5, 1, 4, 2, 6, 3])
    roots = np.flatnonzero(rollouts["parent_id"].isna())
    for number, root in enumerate(roots):
        rollouts.at[root, "prompt_ids"] = np.arange(20) + 20 * (number % 2)
    return rollouts


def case(loss: LossConfig) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Rollouts, scores and advantages, two thirds of which are 0."""
    events = isinstance(loss, SetClip)
    rollouts = team_rollouts([1, 3, 2, 4, 1, 2, 3, 2]) if events else shared_chains()
    scores = scores_of(tiny_model("gpt2"), rollouts, 0.1)
    if events:
        advantages = event_advantages(rollouts)
        credited = advantages["event_id"].isin(["v1", "v4", "v6"])
    else:
        advantages = advantages_of(rollouts).assign(loss_weight=np.resize([1.0, 0.5, 2.0], len(rollouts)))
        advantages["entropy_scores"] = [np.linspace(-1, 1, len(ids)) for ids in rollouts["response_ids"]]
        credited = pd.Series(np.arange(len(rollouts)) % 3 == 1)
    return rollouts, scores, advantages.assign(advantage=advantages["advantage"].where(credited, 0.0))


def naive(
    loss: LossConfig, rollouts: pd.DataFrame, scores: pd.DataFrame, advantages: pd.DataFrame
) -> tuple[torch.Tensor, dict[str, float]]:
    """Gradient and metrics with every response in the backward pass."""
    model = tiny_model("gpt2")
    signals = training_signals(
        rollouts,
        scores,
        advantages,
        "recompute",
        reference=loss.kl_coefficient > 0,
        entropy_scores=isinstance(loss, EntropyClip),
    )
    batches = row_batches(trained_sequences(training_sequences(rollouts), signals), 4096)
    step = accumulate_gradients({"policy": model}, {"policy": batches}, signals, loss, "float32", (0, 0, 0, 0))
    return flat_gradient(model), loss_metrics(step)


def taken(result: UpdateResult) -> torch.Tensor:
    """The gradient of an update's first step: AdamW's first moment is a tenth of it."""
    moments = result.states["policy"].moments
    return torch.cat([value.flatten() * 10 for name, value in moments.items() if name.startswith("exp_avg.")])


def counting(model: Any) -> list[int]:
    """Tokens of every forward pass of a model."""
    seen: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numel()))
    return seen


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_the_gradient_is_that_of_all_responses_however_they_are_packed(loss: LossConfig) -> None:
    rollouts, scores, advantages = case(loss)
    expected, told = naive(loss, rollouts, scores, advantages)
    assert expected.abs().max() > 1e-3
    for packing, micro_batch_tokens in (("rows", 60), ("rows", 4096), ("packed", 64), ("tree", 64), ("tree", 4096)):
        training = PLAIN.model_copy(update={"packing": packing, "micro_batch_tokens": micro_batch_tokens})
        model = tiny_model("gpt2")
        seen = counting(model)
        result = update(model, rollouts, scores=scores, advantages=advantages, loss=loss, training=training)
        torch.testing.assert_close(taken(result), expected, atol=1e-10, rtol=0)
        (step,) = result.steps
        assert step["loss"] == pytest.approx(told["loss"], abs=1e-12)
        assert step["trained_tokens"] == rollouts["response_ids"].map(len).sum()
        assert sum(seen) == step["processed_tokens"]
        assert (step["dropped_tokens"] > step["trained_tokens"] / 2) == (name_of(loss) not in SPEAKING)
        if isinstance(loss, SetClip):  # looks at the whole step first
            assert {name: step[name] for name in EVENT_METRICS} == pytest.approx(
                {name: told[name] for name in EVENT_METRICS}
            )


def test_what_only_counts_is_not_computed() -> None:
    """Whole sequences are left out, and of the others what comes after the last response with advantage."""
    rollouts = chains([2, 3, 2], seed=4)
    rollouts["response_ids"] = [np.arange(1, 4 + number) for number in range(len(rollouts))]
    rollouts["response_logprobs"] = [-np.ones(len(ids)) for ids in rollouts["response_ids"]]
    advantages = advantages_of(rollouts).assign(advantage=[0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0])
    model = tiny_model()
    seen = counting(model)
    result = update(
        model,
        rollouts,
        advantages=advantages,
        scores=scores_of(tiny_model(), rollouts),
        loss=TokenClip(kl_coefficient=0),
    )
    parts = rollouts.iloc[2:4]
    assert seen == [int(parts["prompt_ids"].map(len).sum() + parts["response_ids"].map(len).sum())]
    assert result.steps[0]["dropped_responses"] == 6
    tokens = rollouts["response_ids"].map(len)
    assert result.steps[0]["dropped_tokens"] == tokens.sum() - tokens[3]


@pytest.mark.parametrize("loss", [TokenClip(kl_coefficient=0), SetClip()], ids=["responses", "events"])
def test_a_step_without_any_advantage_moves_on_by_the_momentum_as_it_always_did(
    loss: LossConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts, scores, advantages = case(loss)
    training = TRAINING.model_copy(update={"weight_decay": 0.1, "packing": "rows"})
    found = []
    for silent in (True, False):
        if not silent:
            monkeypatch.setattr(type(loss), "silent_without_advantage", False)
        model = tiny_model("gpt2")
        arguments = {"loss": loss, "scores": scores, "training": training}
        first = update(model, rollouts, advantages=advantages, **arguments)
        before = weights(model)
        nothing = advantages.assign(advantage=0.0)
        second = update(model, rollouts, advantages=nothing, state=first.states["policy"], iteration=1, **arguments)
        assert not same(before, weights(model))
        assert (second.steps[0]["loss"], second.steps[0]["gradient_norm"]) == (0.0, 0.0)
        found.append((second.states["policy"], weights(model)))
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-10, rtol=0)
    assert (found[0][0].steps, found[1][0].steps) == (2, 2)
    torch.testing.assert_close(found[0][0].moments, found[1][0].moments, atol=1e-10, rtol=0)


def test_a_policy_whose_responses_only_count_takes_its_step_beside_the_others() -> None:
    rollouts = team_rollouts([1, 1, 2, 1]).assign(policy=["solver", "solver", "solver", "checker", "checker"])
    rollouts["response_ids"] = [np.array([3, 4])] * 5
    advantages = event_advantages(rollouts).assign(advantage=[1.0, -1.0, 0.0, 0.0, 0.0])
    models = {name: tiny_model(dtype=torch.float32) for name in ("solver", "checker")}
    scores = scores_of(tiny_model(), rollouts)
    result = update_policy(models, {}, rollouts, scores, advantages, TRAINING, SetClip(), "recompute", 0, 0)
    (step,) = result.steps
    assert {name: state.steps for name, state in result.states.items()} == {"solver": 1, "checker": 1}
    assert step["checker_gradient_norm"] == 0
    assert step["solver_gradient_norm"] > 0
    assert (step["events"], step["dropped_responses"]) == (4, 3)


@pytest.mark.parametrize("backbone", ["shared", "separate"])
def test_responses_that_a_critic_learns_from_stay(backbone: Any) -> None:
    rollouts = chains([2, 3])
    model = tiny_model()
    scores = scores_of(model, rollouts)
    scores["values"] = [np.zeros(len(ids)) for ids in rollouts["response_ids"]]
    targets = [np.ones(len(ids)) for ids in rollouts["response_ids"]]
    advantages = advantages_of(rollouts).assign(advantage=0.0, value_targets=targets)
    head = build_critic(model if backbone == "shared" else tiny_model(), backbone)
    critic = CriticInTraining(head, TrainerState(), CriticConfig(backbone=backbone))
    loss = TokenClip(kl_coefficient=0)
    (step,) = update(model, rollouts, scores=scores, advantages=advantages, loss=loss, critic=critic).steps
    assert step["dropped_responses"] == 0
    assert step["value_loss"] == pytest.approx(1.0, abs=0.5)
