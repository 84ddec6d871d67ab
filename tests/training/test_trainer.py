"""The update: invariance to micro-batches and packing, determinism, skipped steps, nothing to train, refused inputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentbench_rl.config.loss import TokenClip
from agentbench_rl.training.checkpoint import TrainerState, load_trainer_state, save_trainer_state
from agentbench_rl.training.gradients import accumulate_gradients
from agentbench_rl.training.packing import PackedBatch, packed_batches, row_batches
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import training_signals
from agentbench_rl.training.trainer import trained_sequences
from agentbench_rl.types import AgentRLError
from tests.training.models import chains, tiny_model
from tests.training.updates import TRAINING, advantages_of, same, score_rollouts, scores_of, update, weights

AGGREGATIONS = ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "sequence_mean_token_sum_norm"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_and_packing_leave_loss_and_gradient_unchanged(
    aggregation: Any,
) -> None:
    model, rollouts = tiny_model(), chains([3, 5, 1, 4, 2, 6, 3, 3])
    norm = 7.0 if aggregation.endswith("norm") else None
    loss = TokenClip(aggregation=aggregation, norm_constant=norm, entropy_coefficient=0.01, kl_coefficient=0.1)
    advantages = advantages_of(rollouts)
    advantages["loss_weight"] = np.resize([1.0, 0.5, 2.0], len(rollouts))
    signals = training_signals(rollouts, scores_of(model, rollouts, 0.15), advantages, "recompute", reference=True)
    sequences = trained_sequences(training_sequences(rollouts), signals)

    def run(batches: list[PackedBatch]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        shares = accumulate_gradients({"policy": model}, {"policy": batches}, signals, loss, "float32").shares
        return sum(share.loss for share in shares), [parameter.grad.clone() for parameter in model.parameters()]

    expected = run(packed_batches(sequences, 4096))
    halves = [*packed_batches(sequences[:4], 4096), *packed_batches(sequences[4:], 4096)]
    quarters = [batch for first in range(0, 8, 2) for batch in packed_batches(sequences[first : first + 2], 4096)]
    for batches in (halves, quarters, row_batches(sequences, 4096), row_batches(sequences, 100)):
        assert len(batches) > 1
        torch.testing.assert_close(run(batches), expected, atol=1e-10, rtol=0)


def test_an_update_raises_what_was_good_and_lowers_what_was_bad() -> None:
    model, rollouts = tiny_model(dtype=torch.float32), chains([2, 2, 2, 2], seed=5)
    before = score_rollouts(model, rollouts, 4096)
    advantages = advantages_of(rollouts).assign(advantage=np.resize([1.0, -1.0], len(rollouts)))
    update(model, rollouts, advantages=advantages, loss=TokenClip(kl_coefficient=0))
    after = score_rollouts(model, rollouts, 4096)
    change = sum(
        sign * float((after[turn] - before[turn]).sum())
        for turn, sign in zip(rollouts["turn_id"], advantages["advantage"], strict=True)
    )
    assert change > 1


def test_dropout_of_a_model_is_off_in_the_update() -> None:
    model, rollouts = tiny_model(), chains([3, 4])
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    result = update(model, rollouts)
    assert (result.steps[0]["ratio_mean"], result.steps[0]["ratio_max"]) == pytest.approx((1.0, 1.0), abs=1e-5)


def test_scalar_advantages_equal_the_same_advantages_token_by_token() -> None:
    rollouts = chains([3, 4])
    flat = advantages_of(rollouts)
    lengths = rollouts["response_ids"].map(len)
    by_token = flat.assign(
        advantage=None,
        token_advantages=[np.full(n, value) for n, value in zip(lengths, flat["advantage"], strict=True)],
    )
    models = [tiny_model(), tiny_model()]
    for model, advantages in zip(models, (flat, by_token), strict=True):
        update(model, rollouts, advantages=advantages)
    assert same(weights(models[0]), weights(models[1]))


def test_epochs_and_minibatches_make_that_many_steps_over_all_tokens() -> None:
    rollouts = chains([3, 4, 2, 5])
    seen: list[dict[str, float]] = []
    training = TRAINING.model_copy(update={"epochs": 2, "minibatches": 2})
    result = update(tiny_model(), rollouts, training=training, on_step=lambda metrics, seconds: seen.append(metrics))
    assert result.steps == seen
    assert result.states["policy"].steps == len(result.seconds) == 4
    assert sum(step["trained_tokens"] for step in seen) == 2 * rollouts["response_ids"].map(len).sum()
    assert seen[0]["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert seen[-1]["ratio_max"] > 1.01
    assert not any("second" in name for step in seen for name in step)


def test_sampler_logprobs_are_used_as_old_ones_when_asked_for() -> None:
    model, rollouts = tiny_model(), chains([3, 4])
    sampled = [values - np.log(2) for values in score_rollouts(model, rollouts, 4096).values()]
    rollouts["response_logprobs"] = sampled
    loss = TokenClip(kl_coefficient=0)
    result = update(model, rollouts, scores=None, loss=loss, old_logprobs="sampler")
    assert result.steps[0]["ratio_mean"] == pytest.approx(2.0, abs=1e-5)


def test_responses_without_weight_or_advantage_row_or_tokens_are_not_trained() -> None:
    rollouts = chains([4, 1, 3], seed=3)
    lengths = rollouts["response_ids"].map(len)
    advantages = advantages_of(rollouts)
    advantages.loc[[1, 4], "loss_weight"] = 0.0
    advantages.loc[[1, 4], "advantage"] = np.nan
    result = update(tiny_model(), rollouts, advantages=advantages.drop(index=6))
    assert (lengths == 0).any()
    assert result.steps[0]["trained_tokens"] == lengths.drop([1, 4, 6]).sum()


@pytest.mark.parametrize("weight", [0.0, None])
def test_nothing_to_train_on_is_a_metric_and_changes_nothing(
    weight: float | None,
) -> None:
    model, rollouts = tiny_model(), chains([2, 3])
    before = weights(model)
    advantages = advantages_of(rollouts, 0.0) if weight == 0.0 else advantages_of(rollouts).head(0)
    result = update(model, rollouts, advantages=advantages)
    assert result.steps == [
        {"trained_tokens": 0.0, "processed_tokens": 0.0, "optimizer_steps": 0.0, "skipped_steps": 0.0}
    ]
    assert result.states["policy"] == TrainerState()
    assert same(before, weights(model))


def test_a_step_that_is_not_finite_is_skipped_and_the_third_in_a_row_is_an_error() -> None:
    model, rollouts = tiny_model(), chains([2, 3])
    scores = scores_of(model, rollouts)
    with torch.no_grad():
        model.lm_head.weight[5] = np.nan
    before = [value.nan_to_num(7.0) for value in weights(model)]
    result = update(model, rollouts, scores=scores)
    assert (result.steps[0]["skipped_steps"], result.steps[0]["optimizer_steps"]) == (1.0, 0.0)
    assert same(before, [value.nan_to_num(7.0) for value in weights(model)])
    state = update(model, rollouts, scores=scores, state=result.states["policy"]).states["policy"]
    assert (state.steps, state.skipped, state.consecutive_skips) == (0, 2, 2)
    with pytest.raises(AgentRLError, match=r"iteration 3, epoch 0, minibatch 0.*log-probs.*turn e"):
        update(model, rollouts, scores=scores, state=state, iteration=3)


def test_a_gradient_that_is_not_finite_leaves_weights_and_moments_alone() -> None:
    model, rollouts = tiny_model(), chains([2, 3])
    first = update(model, rollouts)
    moments = {name: value.clone() for name, value in first.states["policy"].moments.items()}
    before = weights(model)
    hook = model.model.norm.weight.register_hook(lambda gradient: gradient * np.inf)
    second = update(model, rollouts, state=first.states["policy"])
    hook.remove()
    assert second.steps[0]["skipped_steps"] == 1.0
    assert same(before, weights(model))
    assert all(torch.equal(moments[name], value) for name, value in second.states["policy"].moments.items())
    assert update(model, rollouts, state=second.states["policy"]).states["policy"].consecutive_skips == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "run the score stage"),
        ({"advantages": {"turn_id": "other"}}, "not in the rollouts"),
        ({"advantages": {"advantage": np.nan}}, "advantage of turn e0-0: not all values are finite"),
        ({"advantages": {"loss_weight": -1.0}}, "loss_weight of turn e0-0"),
        ({"scores": {"old_logprobs": [[0.5] * 99] * 5}}, "99 values for"),
        ({"scores": {"reference_logprobs": None}}, "reference log-probs of turn e0-0: absent"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_turn(
    changes: dict[str, Any],
    message: str,
) -> None:
    model, rollouts = tiny_model(), chains([2, 3])
    defaults = {"scores": scores_of(model, rollouts), "advantages": advantages_of(rollouts)}
    arguments = {
        name: defaults[name].assign(**value) if isinstance(value, dict) else value for name, value in changes.items()
    }
    with pytest.raises(AgentRLError, match=message):
        update(model, rollouts, **arguments)


def write_two_updates(out: Path, resume: bool) -> dict[str, bytes]:
    """Two iterations of four steps each; `resume` goes through the files between them. Returns the bytes written."""
    model, rollouts = tiny_model(dtype=torch.float32), chains([3, 4, 2, 5])
    training = TRAINING.model_copy(update={"epochs": 2, "minibatches": 2})
    out.mkdir()
    state = None
    for iteration in range(2):
        state = update(model, rollouts, training=training, state=state, iteration=iteration).states["policy"]
        save_trainer_state(out, state)
        state = load_trainer_state(out) if resume else state
    (out / "weights").write_bytes(b"".join(value.numpy().tobytes() for value in weights(model)))
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
from tests.training.test_trainer import write_two_updates
write_two_updates(Path(sys.argv[1]), False)
"""


def test_another_process_and_a_resumed_run_write_the_same_bytes(tmp_path: Path) -> None:
    here = write_two_updates(tmp_path / "here", False)
    assert set(here) == {"optimizer.safetensors", "trainer.json", "weights"}
    assert write_two_updates(tmp_path / "resumed", True) == here
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "there")]
    subprocess.run(program, check=True, cwd=Path(__file__).parents[2])
    assert {path.name: path.read_bytes() for path in sorted((tmp_path / "there").iterdir())} == here


def test_the_permutation_depends_on_seed_iteration_and_phase() -> None:
    rollouts = chains([3, 4, 2, 5, 3, 2])
    training = TRAINING.model_copy(update={"minibatches": 3})
    results = []
    for seed, iteration, phase in ((0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        result = update(tiny_model(), rollouts, training=training, seed=seed, iteration=iteration, phase=phase)
        results.append([result.steps[0]["trained_tokens"], result.steps[0]["loss"]])
    assert results[0] == results[1]
    assert results[0] not in results[2:]
