"""The algorithm-blind trainer: responses, advantages and a loss in; changed weights, metrics and optimizer state out.

An update makes `epochs` x `minibatches` AdamW steps over a seeded permutation of the sequences (those that share an
event stay together), and as many of the critic on the same sequences. Each policy of a team takes the steps in which
it has responses. Responses without a gradient count in a step like the others, and are left out of its backward pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.config.loss import EntropyClip, LossConfig, SetClip
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.critic import CriticInTraining, ValueLoss
from agentbench_rl.training.events import check_events, connected
from agentbench_rl.training.gradients import accumulate_gradients, loss_metrics, two_passes
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.prefix_tree import LAYOUTS
from agentbench_rl.training.sequences import (
    Response,
    Sequence,
    cut_sequences,
    responses_of,
    training_sequences,
)
from agentbench_rl.training.sharding import micro_batch_budget
from agentbench_rl.training.signals import Signal, is_silent, training_signals
from agentbench_rl.training.steps import Metrics, Trainee, attempt, trainee
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import SINGLE, AgentRLError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of each optimizer step, its seconds (never part of the metrics), and the states to go on from.

    states: by policy.
    """

    steps: list[Metrics]
    seconds: list[float]
    states: dict[str, TrainerState]
    critic_state: TrainerState | None


def update_policy(
    models: Mapping[str, Any],
    states: Mapping[str, TrainerState],
    rollouts: pd.DataFrame,
    scores: pd.DataFrame | None,
    advantages: pd.DataFrame,
    training: TrainingConfig,
    loss: LossConfig,
    old_logprobs: Literal["recompute", "sampler"],
    seed: int,
    iteration: int,
    phase: int = 0,
    on_step: Callable[[Metrics, float], None] | None = None,
    critic: CriticInTraining | None = None,
    world: World = ALONE,
) -> UpdateResult:
    """Train policies, and a critic, in place on the responses that `advantages` lists with a positive loss weight.

    models: by policy, each trained on the responses of that name; one named `policy`, which has none beside it, on all,
    whoever sampled them. states: of their optimizers, where they have begun. phase: which update of an iteration it is.
    A critic goes with a single policy. world: processes that share the update, told the same; they shard the models.
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
    signals = _assigned(signals, models)
    if isinstance(loss, SetClip):
        check_events(signals)
    units = connected(trained_sequences(training_sequences(rollouts), signals), signals)
    run = _Run(models, states, critic, signals, training, loss, world)
    steps: list[Metrics] = []
    seconds = []
    for number, part in _minibatches(units, training, (seed, iteration, phase)):
        began = time.perf_counter()
        steps.append(run.step(part, number))
        seconds.append(time.perf_counter() - began)
        if on_step is not None:
            on_step(steps[-1], seconds[-1])
    return UpdateResult(steps, seconds, *run.reached())


def _minibatches(
    units: Items[list[Sequence]], training: TrainingConfig, update: tuple[int, int, int]
) -> Iterator[tuple[tuple[int, int, int, int], list[Sequence]]]:
    """The sequences of every optimizer step, with the numbers that name it: seed, iteration, epoch, minibatch.

    update: seed, iteration, phase.
    """
    seed, iteration, phase = update
    for epoch in range(training.epochs):
        order = np.random.default_rng([seed, iteration, epoch, phase]).permutation(len(units))
        for minibatch, chosen in enumerate(np.array_split(order, training.minibatches)):
            yield (seed, iteration, epoch, minibatch), [sequence for index in chosen for sequence in units[index]]


def trained_sequences(sequences: Items[Sequence], signals: Mapping[str, Signal]) -> list[Sequence]:
    """Keep the responses with tokens and a signal, and the sequences with such responses.

    A sequence of several policies' responses becomes one of each policy: the others' are context.
    """
    kept = []
    for sequence in sequences:
        by_policy: dict[str, list[Response]] = {}
        for item in sequence.responses:
            if item.turn_id in signals and item.stop > item.start:
                by_policy.setdefault(signals[item.turn_id].policy, []).append(item)
        kept += [replace(sequence, responses=tuple(responses)) for responses in by_policy.values()]
    return kept


def _assigned(signals: dict[str, Signal], models: Mapping[str, Any]) -> dict[str, Signal]:
    """The signals with the policies that are trained on them: the single one, whoever sampled, or those named.

    Raises AgentRLError for a policy without a model.
    """
    if SINGLE in models:
        return {turn: replace(signal, policy=SINGLE) for turn, signal in signals.items()}
    for turn, signal in signals.items():
        if signal.policy not in models:
            raise AgentRLError(
                f"rollouts: turn {turn} is of the policy {signal.policy}, which is not trained here; "
                f"known policies: {', '.join(models)}"
            )
    return signals


class _Run:
    """What stays the same over the steps of an update, and the trainees: policies, and the critic if there is one."""

    def __init__(
        self,
        models: Mapping[str, Any],
        states: Mapping[str, TrainerState],
        critic: CriticInTraining | None,
        signals: dict[str, Signal],
        training: TrainingConfig,
        loss: LossConfig,
        world: World,
    ) -> None:
        self._models, self._signals, self._training, self._loss = models, signals, training, loss
        self._world = world
        rate, decay, clip = training.learning_rate, training.weight_decay, training.gradient_clip
        self._policies = {
            name: trainee(model, states.get(name) or TrainerState(), rate, decay, clip, "" if name == SINGLE else name)
            for name, model in models.items()
        }
        self.critic: Trainee | None = None
        self._settings: CriticConfig | None = None
        for model in models.values():
            model.eval()  # no dropout: the trained policy is the one that sampled and was scored
        if critic is not None:
            if len(models) != 1:
                raise AgentRLError(f"a critic goes with one policy, and there are {len(models)}: {', '.join(models)}")
            self._settings = critic.settings
            start, rate = critic.state or TrainerState(), critic.settings.learning_rate
            self.critic = trainee(critic.model, start, rate, decay, clip, "critic", "critic.learning_rate")

    def reached(self) -> tuple[dict[str, TrainerState], TrainerState | None]:
        """The states to go on from: of the policies by name, and of the critic."""
        states = {name: policy.reached() for name, policy in self._policies.items()}
        return states, self.critic.reached() if self.critic else None

    def step(self, sequences: list[Sequence], number: tuple[int, int, int, int]) -> Metrics:
        """One optimizer step of policies and critic; without sequences there is none, only metrics that say so."""
        if not sequences:
            return {"trained_tokens": 0.0, "processed_tokens": 0.0, "optimizer_steps": 0.0, "skipped_steps": 0.0}
        whole = self._batches(sequences)
        by_policy = self._with_gradient(sequences, whole)
        batches = _flat(by_policy)
        _, iteration, epoch, minibatch = number
        where = f"iteration {iteration}, epoch {epoch}, minibatch {minibatch}"
        values = self._value_loss(batches)
        first = _flat(whole) if two_passes(self._loss) else []
        again = batches if values is not None and not values.shares_backbone else []
        metrics = _token_counts(_flat(whole), batches, [*first, *again])
        if values is None or self.critic is None:
            return metrics | self._policy_step(by_policy, whole, None, number, where)
        if values.shares_backbone:
            return metrics | self._policy_step(by_policy, whole, values, number, where)
        metrics |= self._policy_step(by_policy, whole, None, number, where)
        return metrics | attempt([self.critic], lambda: values.accumulate(batches, self._training.dtype), where)

    def _with_gradient(
        self, sequences: list[Sequence], whole: dict[str, list[PackedBatch]]
    ) -> dict[str, list[PackedBatch]]:
        """Micro-batches without the responses that only count, of the same policies: some may have none left."""
        turns = [response.turn_id for sequence in sequences for response in sequence.responses]
        kept = {turn for turn in turns if not is_silent(self._signals[turn], self._loss)}
        if len(kept) == len(turns):
            return whole
        return {name: [] for name in whole} | self._batches(cut_sequences(responses_of(sequences, kept)))

    def _batches(self, sequences: list[Sequence]) -> dict[str, list[PackedBatch]]:
        """Micro-batches of the policies that have sequences, in the order of the models."""
        owners = [self._signals[sequence.responses[0].turn_id].policy for sequence in sequences]
        layout, limit = LAYOUTS[self._training.packing], self._training.micro_batch_tokens
        batches = {}
        for name in [name for name in self._policies if name in owners]:
            own = [sequence for sequence, owner in zip(sequences, owners, strict=True) if owner == name]
            batches[name] = layout(own, micro_batch_budget(own, limit, self._world))
        return batches

    def _policy_step(
        self,
        batches: dict[str, list[PackedBatch]],
        whole: dict[str, list[PackedBatch]],
        values: ValueLoss | None,
        number: tuple[int, ...],
        where: str,
    ) -> Metrics:
        """One step of the policies, and of the head of a critic on the policy's backbone, whose value loss is given."""
        policies = [self._policies[name] for name in batches]
        trainees = [*policies, self.critic] if values and self.critic else policies

        def accumulate() -> Metrics:
            dtype = self._training.dtype
            arguments = (self._models, batches, self._signals, self._loss, dtype, number, values, self._world, whole)
            return loss_metrics(accumulate_gradients(*arguments)) | (values.metrics() if values else {})

        metrics = attempt(trainees, accumulate, where)
        return metrics if SINGLE in self._policies else metrics | _joint(metrics, [one.prefix for one in policies])

    def _value_loss(self, batches: list[PackedBatch]) -> ValueLoss | None:
        """The step's value loss, unless nothing in it has a target."""
        if self.critic is None or self._settings is None:
            return None
        values = ValueLoss(self.critic.module, self._settings, batches, self._signals, self._world)
        return values if values.total else None


def _flat(by_policy: Mapping[str, list[PackedBatch]]) -> list[PackedBatch]:
    return [batch for items in by_policy.values() for batch in items]


def _token_counts(whole: list[PackedBatch], batches: list[PackedBatch], others: list[PackedBatch]) -> Metrics:
    """Responses' tokens, and the tokens of the rows (prompts and padding included) that models go through.

    whole: all responses; batches: those with a gradient; others: what models go through besides. dropped_...: responses
    that only count. shared_share: of the sequences' tokens, those that were computed with another sequence's.
    """
    size = sum(batch.input_ids.numel() for batch in batches)
    trained, kept_tokens = (sum(len(batch.targets) for batch in part) for part in (whole, batches))
    responses, kept_responses = (sum(len(batch.spans) for batch in part) for part in (whole, batches))
    metrics = {
        "trained_tokens": float(trained),
        "dropped_tokens": float(trained - kept_tokens),
        "dropped_responses": float(responses - kept_responses),
        "processed_tokens": float(size + sum(batch.input_ids.numel() for batch in others)),
        "micro_batches": float(len(batches)),
    }
    if batches:
        tokens = sum(batch.tokens for batch in batches)
        metrics["padding_share"] = 1 - tokens / size
        metrics["shared_share"] = 1 - tokens / sum(batch.flat_tokens for batch in batches)
    return metrics


def _joint(metrics: Metrics, prefixes: Items[str]) -> Metrics:
    """Of the step of a team's policies: the norm of their gradients together, and whether they all made it."""
    counts = {name: metrics[f"{prefixes[0]}{name}"] for name in ("optimizer_steps", "skipped_steps")}
    norms = [metrics[f"{prefix}gradient_norm"] for prefix in prefixes if f"{prefix}gradient_norm" in metrics]
    return counts | ({"gradient_norm": math.hypot(*norms)} if norms else {})
