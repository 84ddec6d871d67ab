"""The critic: values at the right states, a loss that does not depend on batching, learning, resuming, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.config.loss import TokenClip
from agentbench_rl.policies.critic import Backbone, Critic, build_critic, load_critic, save_critic
from agentbench_rl.training.checkpoint import load_trainer_state, save_trainer_state
from agentbench_rl.training.critic import CriticInTraining, ValueLoss
from agentbench_rl.training.gradients import accumulate_gradients
from agentbench_rl.training.packing import PackedBatch, packed_batches, row_batches
from agentbench_rl.training.scoring import policy_measure, score_tokens, value_measure
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import Signal, training_signals
from agentbench_rl.training.trainer import UpdateResult, trained_sequences
from agentbench_rl.types import AgentRLError
from tests.training.models import VOCABULARY, chains, tiny_model
from tests.training.updates import TRAINING, advantages_of, same, scores_of, update, weights

BACKBONES: tuple[Backbone, ...] = ("separate", "shared")
LOSS = TokenClip(kl_coefficient=0)


def critic_of(model: Any, backbone: Backbone, *, trained: bool = True) -> Critic:
    """A critic on a copy of the model, or on the model itself; `trained`: its head is not zero."""
    critic = build_critic(tiny_model(dtype=model.dtype) if backbone == "separate" else model, backbone)
    if trained:
        torch.manual_seed(7)
        torch.nn.init.normal_(critic.head.weight, std=0.3)
    return critic


def values_of(model: Any, critic: Critic, rollouts: pd.DataFrame) -> list[np.ndarray]:
    measure = value_measure(critic) if critic.backbone is not None else policy_measure(model, critic)
    found = score_tokens(model, measure, rollouts, 4096)["values"]
    return [found[turn] for turn in rollouts["turn_id"]]


def targets_of(rollouts: pd.DataFrame, *, per_turn: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=1 if per_turn else len(ids)) for ids in rollouts["response_ids"]]


def prepared(
    model: Any, critic: Critic, *, per_turn: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, dict[str, Signal]]:
    """Rollouts, scores, advantages with value targets, and the signals they make."""
    rollouts = chains([3, 5, 1, 4, 2, 6])
    scores = scores_of(model, rollouts, 0.1).assign(values=values_of(model, critic, rollouts))
    advantages = advantages_of(rollouts).assign(value_targets=targets_of(rollouts, per_turn=per_turn))
    advantages["loss_weight"] = np.resize([1.0, 0.5, 2.0], len(rollouts))
    signals = training_signals(rollouts, scores, advantages, "recompute", reference=False, values=True)
    return rollouts, scores, advantages, signals


def update_both(
    model: Any, critic: Critic, settings: CriticConfig, result: UpdateResult | None = None, **changes: Any
) -> UpdateResult:
    """One update of policy and critic, going on from an earlier one."""
    rollouts, scores, advantages, _ = prepared(model, critic)
    state, critic_state = (result.states["policy"], result.critic_state) if result else (None, None)
    arguments = {"scores": scores, "advantages": advantages, "loss": LOSS, "state": state} | changes
    return update(model, rollouts, critic=CriticInTraining(critic, critic_state, settings), **arguments)


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4)).double().eval()


@pytest.mark.parametrize("build", [tiny_model, partial(tiny_model, "qwen2"), gpt2], ids=["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_values_are_those_of_the_states_before_and_after_each_token(
    build: Callable[[], Any], backbone: Backbone
) -> None:
    model = build()
    critic = build_critic(build() if backbone == "separate" else model, backbone)
    torch.nn.init.normal_(critic.head.weight)
    rollouts = chains([1, 4, 2])
    measure = value_measure(critic) if backbone == "separate" else policy_measure(model, critic)
    scores = score_tokens(model, measure, rollouts, 80)
    for sequence in training_sequences(rollouts):
        ids = torch.from_numpy(sequence.token_ids)[None]
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
            expected = (states @ critic.head.weight[0] + critic.head.bias).numpy()
        for item in sequence.responses:
            before, after = slice(item.start - 1, item.stop - 1), slice(item.start, item.stop)
            np.testing.assert_allclose(scores["values"][item.turn_id], expected[before], atol=1e-5)
            np.testing.assert_allclose(scores["next_values"][item.turn_id], expected[after], atol=1e-5)


@pytest.mark.parametrize("per_turn", [False, True])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_micro_batches_and_packing_leave_the_gradient_of_the_value_loss_unchanged(
    backbone: Backbone, per_turn: bool
) -> None:
    model = tiny_model()
    critic = critic_of(model, backbone)
    rollouts, _, _, signals = prepared(model, critic, per_turn=per_turn)
    sequences = trained_sequences(training_sequences(rollouts), signals)
    settings = CriticConfig(backbone=backbone, coefficient=0.7)

    def run(batches: list[PackedBatch]) -> list[torch.Tensor]:
        model.zero_grad()
        critic.zero_grad()
        values = ValueLoss(critic, settings, batches, signals)
        if backbone == "separate":
            values.accumulate(batches, "float32")
        else:
            accumulate_gradients({"policy": model}, {"policy": batches}, signals, LOSS, "float32", values=values)
        metrics = torch.tensor(list(values.metrics().values()), dtype=torch.float64)
        return [*gradients(model), *gradients(critic), metrics]

    expected = run(packed_batches(sequences, 4096))
    halves = [*packed_batches(sequences[:3], 4096), *packed_batches(sequences[3:], 4096)]
    for batches in (halves, row_batches(sequences, 4096), row_batches(sequences, 100)):
        assert len(batches) > 1
        torch.testing.assert_close(run(batches), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("per_turn", [False, True])
def test_the_gradient_is_that_of_the_clipped_squared_error_over_all_targets(per_turn: bool) -> None:
    """A turn with one target trains the state before its first token alone."""
    model = tiny_model()
    critic = critic_of(model, "separate")
    rollouts, _, _, signals = prepared(model, critic, per_turn=per_turn)
    for signal in signals.values():
        assert signal.old_value is not None
        signal.old_value[:] -= 0.2  # so that the clip acts on some
    sequences = trained_sequences(training_sequences(rollouts), signals)
    values = ValueLoss(critic, CriticConfig(value_clip=0.1), row_batches(sequences, 128), signals)
    values.accumulate(row_batches(sequences, 128), "float32")
    ours = gradients(critic)
    assert 0 < values.metrics()["value_clip"] < 1
    critic.zero_grad()
    total, count = torch.zeros((), dtype=torch.float64), 0.0
    for sequence in sequences:
        states = critic.backbone(input_ids=torch.from_numpy(sequence.token_ids)[None]).last_hidden_state[0]
        for item in sequence.responses:
            signal = signals[item.turn_id]
            for place in range(1 if per_turn else item.stop - item.start):
                value = critic(states[item.start - 1 + place])
                target, old = signal.value_target[place], signal.old_value[place]
                bounded = torch.clamp(value, old - 0.1, old + 0.1)
                total = total + signal.weight * torch.maximum((value - target) ** 2, (bounded - target) ** 2)
                count += signal.weight
    (total / count).backward()
    torch.testing.assert_close(ours, gradients(critic), atol=1e-10, rtol=0)
    assert values.metrics()["value_loss"] == pytest.approx(float(total.detach()) / count, abs=1e-10)


def test_a_separate_critic_leaves_the_policy_as_it_would_be_without() -> None:
    models = [tiny_model(dtype=torch.float32) for _ in range(2)]
    critic = critic_of(models[0], "separate")
    both = update_both(models[0], critic, CriticConfig(learning_rate=1e-2))
    rollouts, scores, advantages, _ = prepared(models[1], critic)
    alone = update(models[1], rollouts, scores=scores, advantages=advantages, loss=LOSS)
    assert same(weights(models[0]), weights(models[1]))
    assert both.steps[0]["processed_tokens"] == 2 * alone.steps[0]["processed_tokens"]


def test_the_value_loss_reaches_a_shared_backbone_with_its_coefficient() -> None:
    found = []
    for coefficient in (1e-6, 1.0):
        model = tiny_model()
        critic = critic_of(model, "shared")
        rollouts, _, _, signals = prepared(model, critic)
        batches = row_batches(trained_sequences(training_sequences(rollouts), signals), 4096)
        settings = CriticConfig(backbone="shared", coefficient=coefficient)
        values = ValueLoss(critic, settings, batches, signals)
        accumulate_gradients({"policy": model}, {"policy": batches}, signals, LOSS, "float32", values=values)
        found.append((torch.cat([one.flatten() for one in gradients(model)]), gradients(critic)[0]))
    assert (found[1][0] - found[0][0]).abs().max() > 1e-3
    torch.testing.assert_close(found[1][1] * 1e-6, found[0][1])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_critic_learns_the_targets_of_a_fixed_batch(backbone: Backbone) -> None:
    model = tiny_model(dtype=torch.float32)
    critic = critic_of(model, backbone, trained=False)
    assert not any(values.any() for values in values_of(model, critic, chains([3])))
    result, history = None, []
    for _ in range(25):
        settings = CriticConfig(backbone=backbone, learning_rate=3e-3, value_clip=None)
        result = update_both(model, critic, settings, result)
        history.append(result.steps[-1])
    assert history[-1]["value_loss"] < 0.2 * history[0]["value_loss"]
    assert history[0]["explained_variance"] < 0.1 < 0.8 < history[-1]["explained_variance"] <= 1
    assert result is not None
    assert result.critic_state is not None
    assert result.critic_state.steps == result.states["policy"].steps == 25


@pytest.mark.parametrize("backbone", BACKBONES)
def test_scored_values_are_those_that_the_first_step_sees(backbone: Backbone) -> None:
    model = tiny_model(dtype=torch.float32)
    critic = critic_of(model, backbone)
    rollouts, scores, advantages, signals = prepared(model, critic)
    pairs = [(signal.old_value, signal.value_target, signal.weight) for signal in signals.values()]
    weight = np.concatenate([np.full(len(target), one) for _, target, one in pairs if target is not None])
    errors = np.concatenate([old - target for old, target, _ in pairs if old is not None and target is not None])
    # Values that equal the old ones are within any clip.
    settings = CriticConfig(backbone=backbone, value_clip=1e-4)
    in_training = CriticInTraining(critic, None, settings)
    first = update(model, rollouts, scores=scores, advantages=advantages, loss=LOSS, critic=in_training).steps[0]
    assert first["value_loss"] == pytest.approx(np.average(errors**2, weights=weight), abs=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_run_resumed_from_files_goes_on_bit_for_bit(backbone: Backbone, tmp_path: Path) -> None:
    written = []
    for resume in (False, True):
        model = tiny_model(dtype=torch.float32)
        critic = critic_of(model, backbone, trained=False)
        settings = CriticConfig(backbone=backbone, learning_rate=1e-2)
        training = TRAINING.model_copy(update={"epochs": 2, "minibatches": 2})
        first = update_both(model, critic, settings, training=training)
        if resume:
            save_critic(critic, tmp_path / "critic")
            save_trainer_state(tmp_path, first.critic_state)
            other = tiny_model(dtype=torch.float32, seed=1) if backbone == "separate" else model
            critic = load_critic(tmp_path / "critic", other, backbone)
            first = UpdateResult(first.steps, first.seconds, first.states, load_trainer_state(tmp_path))
        second = update_both(model, critic, settings, first, training=training, iteration=1)
        save_critic(critic, tmp_path / f"end{resume}")
        written.append([(tmp_path / f"end{resume}" / "critic.safetensors").read_bytes(), second.steps])
        written[-1] += [value.numpy().tobytes() for value in second.critic_state.moments.values()]
    assert written[0] == written[1]


def test_a_separate_critic_that_is_not_finite_is_skipped_by_itself_and_the_third_time_is_an_error() -> None:
    model = tiny_model()
    critic = critic_of(model, "separate")
    rollouts, scores, advantages, _ = prepared(model, critic)
    with torch.no_grad():
        critic.head.bias[0] = np.nan
    settings, result = CriticConfig(learning_rate=1e-2), None
    arguments = {"scores": scores, "advantages": advantages, "loss": LOSS}
    before = weights(model)
    for _ in range(2):
        state, critic_state = (result.states["policy"], result.critic_state) if result else (None, None)
        in_training = CriticInTraining(critic, critic_state, settings)
        result = update(model, rollouts, state=state, critic=in_training, **arguments)
        assert (result.steps[0]["optimizer_steps"], result.steps[0]["critic_skipped_steps"]) == (1.0, 1.0)
    assert not same(before, weights(model))
    in_training = CriticInTraining(critic, result.critic_state, settings)
    with pytest.raises(AgentRLError, match=r"a value or its loss.*Lower critic\.learning_rate"):
        update(model, rollouts, state=result.states["policy"], critic=in_training, **arguments)


def test_a_shared_critic_that_is_not_finite_skips_the_step_of_both() -> None:
    model = tiny_model()
    critic = critic_of(model, "shared")
    rollouts, scores, advantages, _ = prepared(model, critic)
    with torch.no_grad():
        critic.head.bias[0] = np.nan
    in_training = CriticInTraining(critic, None, CriticConfig(backbone="shared"))
    before = weights(model)
    result = update(model, rollouts, scores=scores, advantages=advantages, loss=LOSS, critic=in_training)
    assert (result.states["policy"].skipped, result.critic_state.skipped, result.states["policy"].steps) == (1, 1, 0)
    assert same(before, weights(model))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantages": {"value_targets": None}}, "value_targets of turn e0-0: absent"),
        ({"advantages": {"value_targets": [[0.5] * 99] * 21}}, "99 values for"),
        ({"scores": {"values": None}}, "values of turn e0-0: absent"),
        ({"scores": {"values": [[np.nan] * len(ids) for ids in chains([3, 5, 1, 4, 2, 6])["response_ids"]]}}, "finite"),
    ],
)
def test_targets_and_values_that_do_not_fit_are_refused_with_the_turn(changes: dict[str, Any], message: str) -> None:
    model = tiny_model()
    critic = critic_of(model, "shared")
    rollouts, scores, advantages, _ = prepared(model, critic)
    frames = {"scores": scores, "advantages": advantages}
    frames |= {name: frames[name].assign(**value) for name, value in changes.items()}
    in_training = CriticInTraining(critic, None, CriticConfig(backbone="shared"))
    with pytest.raises(AgentRLError, match=message):
        update(model, rollouts, loss=LOSS, critic=in_training, **frames)


def test_equal_targets_leave_the_explained_variance_out() -> None:
    model = tiny_model()
    critic = critic_of(model, "separate", trained=False)
    rollouts, scores, advantages, _ = prepared(model, critic)
    advantages["value_targets"] = [np.ones(len(ids)) for ids in rollouts["response_ids"]]
    in_training = CriticInTraining(critic, None, CriticConfig())
    step = update(model, rollouts, scores=scores, advantages=advantages, loss=LOSS, critic=in_training).steps[0]
    assert step["value_loss"] == pytest.approx(1.0)
    assert "explained_variance" not in step
