"""The value loss of an optimizer step: K_tokens(value loss) over the states that have a target, times its coefficient.

A response has one target per token, or one for the state before it, then only that state is trained. Like the policy's
losses, a micro-batch's share is normalised over the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.algorithms.losses import value_loss
from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.policies.critic import Critic
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.logprobs import precision, row_states, trained_states
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.sharding import empty_batch, own_batches
from agentbench_rl.training.signals import Floats, Signal
from agentbench_rl.training.steps import Metrics, agree
from agentbench_rl.training.world import ALONE, World


@dataclass(frozen=True)
class CriticInTraining:
    """A critic, how far its optimizer has come (None: not begun), and its settings."""

    model: Critic
    state: TrainerState | None
    settings: CriticConfig


class ValueLoss:
    """The value loss of one optimizer step; it remembers what it saw of every micro-batch."""

    def __init__(
        self,
        critic: Critic,
        settings: CriticConfig,
        batches: Items[PackedBatch],
        signals: dict[str, Signal],
        world: World = ALONE,
    ) -> None:
        """batches: all of the step, whichever process computes them."""
        self._critic, self._settings, self._signals, self._world = critic, settings, signals, world
        self._seen: list[tuple[Floats, ...]] = []
        self._faults: list[str] = []
        #: Weighted number of the step's targets.
        self.total = float(sum(_targets(batch, signals).weight.sum() for batch in batches))

    @property
    def shares_backbone(self) -> bool:
        """Whether the states are the policy's."""
        return self._critic.backbone is None

    def share(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """Share (scalar, with the coefficient) of a micro-batch, from the states [T, H] before its tokens."""
        told = _targets(batch, self._signals)
        values = self._critic(states.index_select(0, torch.from_numpy(told.place).to(states.device)))
        target, old, weight = (
            torch.from_numpy(numbers).to(values.device, values.dtype)
            for numbers in (told.target, told.old, told.weight)
        )
        losses = value_loss(values, old, target, self._settings.value_clip)
        if not torch.isfinite(losses.detach()).all():
            self._faults.append(f"a value or its loss, in turns {batch.spans[0].turn_id} ... {batch.spans[-1].turn_id}")
        clipped = losses > (values - target).square()
        seen = (values, losses, clipped)
        self._seen.append((told.weight, told.target, *(item.detach().double().cpu().numpy() for item in seen)))
        return self._settings.coefficient * (weight * losses).sum() / self.total

    def accumulate(self, batches: Items[PackedBatch], dtype: Literal["float32", "bfloat16"]) -> Metrics:
        """Add the gradient of the step's loss to a critic with a backbone of its own; returns the metrics."""
        for number in own_batches(batches, self._world):
            batch = empty_batch() if number is None else batches[number]
            with precision(self._critic.backbone, dtype):
                states = trained_states(row_states(self._critic.backbone, batch), batch)
            self.share(states, batch).backward()  # type: ignore[no-untyped-call]
        return self.metrics()

    def metrics(self) -> Metrics:
        """Weighted means over the targets: loss (without coefficient), share of clipped values; explained variance.

        Explained variance: 1 - Var(target - value) / Var(target); left out where all targets are equal.
        Raises NonFiniteError for a value or a loss that is not finite.
        """
        agree(self._faults, self._world)
        seen = [part for parts in self._world.gather(self._seen) for part in parts]
        weight, target, values, losses, clipped = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        metrics = {"value_loss": _mean(losses, weight), "value_clip": _mean(clipped, weight)}
        if target.max() > target.min():
            unexplained = _variance(target - values, weight) / _variance(target, weight)
            metrics["explained_variance"] = 1.0 - unexplained
        return metrics


@dataclass(frozen=True)
class _Targets:
    """Of the N states of a micro-batch that have a target: its token's place among the T, target, old value, weight."""

    place: NDArray[np.int64]
    target: Floats
    old: Floats
    weight: Floats


def _targets(batch: PackedBatch, signals: dict[str, Signal]) -> _Targets:
    places, targets, olds, weights = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for span in batch.spans:
        signal = signals[span.turn_id]
        if signal.value_target is not None and signal.old_value is not None:
            count = len(signal.value_target)
            places.append(np.arange(span.start, span.start + count))
            targets.append(signal.value_target)
            olds.append(signal.old_value)
            weights.append(np.full(count, signal.weight))
    return _Targets(np.concatenate(places), np.concatenate(targets), np.concatenate(olds), np.concatenate(weights))


def _mean(values: Floats, weight: Floats) -> float:
    return float(np.average(values, weights=weight))


def _variance(values: Floats, weight: Floats) -> float:
    return _mean((values - _mean(values, weight)) ** 2, weight)
