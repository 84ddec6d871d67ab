"""The algorithm-blind trainer: responses, advantages and a loss in; changed weights, metrics and optimizer state out.

An update makes `epochs` x `minibatches` AdamW steps over a seeded permutation of the sequences, and as many of the
critic on the same sequences.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from agentbench_rl.algorithms.losses import needs_gate
from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.config.loss import EntropyClip, LossConfig
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.critic import CriticInTraining, ValueLoss
from agentbench_rl.training.gradients import accumulate_gradients, loss_metrics
from agentbench_rl.training.packing import LAYOUTS, PackedBatch
from agentbench_rl.training.sequences import Sequence, training_sequences
from agentbench_rl.training.signals import Signal, training_signals
from agentbench_rl.training.steps import Metrics, Trainee, attempt, trainee

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of each optimizer step, its seconds (never part of the metrics), and the states to go on from."""

    steps: list[Metrics]
    seconds: list[float]
    state: TrainerState
    critic_state: TrainerState | None


def update_policy(
    model: Any,
    state: TrainerState | None,
    rollouts: pd.DataFrame,
    scores: pd.DataFrame | None,
    advantages: pd.DataFrame,
    training: TrainingConfig,
    loss: LossConfig,
    old_logprobs: Literal["recompute", "sampler"],
    seed: int,
    iteration: int,
    on_step: Callable[[Metrics, float], None] | None = None,
    critic: CriticInTraining | None = None,
) -> UpdateResult:
    """Train `model`, and a critic, in place on the responses that `advantages` lists with a positive loss weight.

    Old log-probs come from `scores` (recompute) or from the sampler; reference log-probs from `scores` when
    loss.kl_coefficient is set; old values from `scores`. A step whose loss, log-probs, values or gradient are not
    finite is skipped and counted. Raises AgentRLError for inputs that do not fit together, and after three skipped
    steps in a row (counted across updates by the state).
    """
    signals = training_signals(
        rollouts,
        scores,
        advantages,
        old_logprobs,
        reference=loss.kl_coefficient > 0,
        values=critic is not None,
        entropy_scores=isinstance(loss, EntropyClip),
    )
    sequences = trained_sequences(training_sequences(rollouts), signals)
    run = _Run(model, state or TrainerState(), critic, signals, training, loss)
    steps: list[Metrics] = []
    seconds = []
    model.eval()  # no dropout: the trained policy is the one that sampled and was scored
    for epoch in range(training.epochs):
        order = np.random.default_rng([seed, iteration, epoch]).permutation(len(sequences))
        for minibatch, chosen in enumerate(np.array_split(order, training.minibatches)):
            began = time.perf_counter()
            part = [sequences[index] for index in chosen]
            steps.append(run.step(part, (seed, iteration, epoch, minibatch)))
            seconds.append(time.perf_counter() - began)
            if on_step is not None:
                on_step(steps[-1], seconds[-1])
    return UpdateResult(steps, seconds, run.policy.reached(), run.critic.reached() if run.critic else None)


def trained_sequences(sequences: Items[Sequence], signals: dict[str, Signal]) -> list[Sequence]:
    """Keep the responses with tokens and a signal, and the sequences with such responses."""
    kept = []
    for sequence in sequences:
        responses = tuple(item for item in sequence.responses if item.turn_id in signals and item.stop > item.start)
        if responses:
            kept.append(replace(sequence, responses=responses))
    return kept


class _Run:
    """What stays the same over the steps of an update, and the trainees: the policy, and the critic if there is one."""

    def __init__(
        self,
        model: Any,
        state: TrainerState,
        critic: CriticInTraining | None,
        signals: dict[str, Signal],
        training: TrainingConfig,
        loss: LossConfig,
    ) -> None:
        self._model, self._signals, self._training, self._loss = model, signals, training, loss
        decay, clip = training.weight_decay, training.gradient_clip
        self.policy = trainee(model, state, training.learning_rate, decay, clip)
        self.critic: Trainee | None = None
        self._settings: CriticConfig | None = None
        if critic is not None:
            self._settings = critic.settings
            start = critic.state or TrainerState()
            self.critic = trainee(critic.model, start, critic.settings.learning_rate, decay, clip, owner="critic")

    def step(self, sequences: list[Sequence], number: tuple[int, int, int, int]) -> Metrics:
        """One optimizer step of policy and critic; without sequences there is none, only metrics that say so."""
        if not sequences:
            return {"trained_tokens": 0.0, "processed_tokens": 0.0, "optimizer_steps": 0.0, "skipped_steps": 0.0}
        batches = LAYOUTS[self._training.packing](sequences, self._training.micro_batch_tokens)
        _, iteration, epoch, minibatch = number
        where = f"iteration {iteration}, epoch {epoch}, minibatch {minibatch}"
        values = self._value_loss(batches)
        metrics = _token_counts(batches, self._passes(values))
        if values is None or self.critic is None:
            return metrics | self._policy_step(batches, None, number, where)
        if values.shares_backbone:
            return metrics | self._policy_step(batches, values, number, where)
        metrics |= self._policy_step(batches, None, number, where)
        return metrics | attempt([self.critic], lambda: values.accumulate(batches, self._training.dtype), where)

    def _passes(self, values: ValueLoss | None) -> int:
        """How often a token goes through a transformer: for the policy, for the gate of its loss, for a critic."""
        return 1 + int(needs_gate(self._loss)) + int(values is not None and not values.shares_backbone)

    def _policy_step(
        self, batches: list[PackedBatch], values: ValueLoss | None, number: tuple[int, ...], where: str
    ) -> Metrics:
        """One step of the policy, and of the head of a critic on the policy's backbone, whose value loss is given."""
        trainees = [self.policy, self.critic] if values and self.critic else [self.policy]

        def accumulate() -> Metrics:
            arguments = (self._model, batches, self._signals, self._loss, self._training.dtype, number, values)
            return loss_metrics(accumulate_gradients(*arguments)) | (values.metrics() if values else {})

        return attempt(trainees, accumulate, where)

    def _value_loss(self, batches: list[PackedBatch]) -> ValueLoss | None:
        """The step's value loss, unless nothing in it has a target."""
        if self.critic is None or self._settings is None:
            return None
        values = ValueLoss(self.critic.module, self._settings, batches, self._signals)
        return values if values.total else None


def _token_counts(batches: list[PackedBatch], passes: int) -> Metrics:
    """Responses' tokens, and the tokens of the rows (prompts and padding included) in all `passes` over them."""
    size = sum(batch.input_ids.numel() for batch in batches)
    return {
        "trained_tokens": float(sum(len(batch.targets) for batch in batches)),
        "processed_tokens": float(passes * size),
        "padding_share": 1 - sum(batch.tokens for batch in batches) / size,
        "micro_batches": float(len(batches)),
    }
