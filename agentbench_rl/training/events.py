"""Events in training: which sequences belong together, and the set ratio of a whole optimizer step (loss set_clip).

The members of an event may stand in different sequences, micro-batches, models and processes; what binds them is one
number per event, summed over all of them before anything is back-propagated.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentbench_rl.algorithms.losses.set_clip import (
    EventLoss,
    Events,
    EventTokens,
    event_loss,
    event_metrics,
    length_factor,
)
from agentbench_rl.config.loss import SetClip
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.sequences import Sequence
from agentbench_rl.training.signals import Floats, Signal
from agentbench_rl.training.steps import Metrics
from agentbench_rl.types import AgentRLError


def connected(sequences: Items[Sequence], signals: Mapping[str, Signal]) -> list[list[Sequence]]:
    """Sets of sequences that share events, directly or through others, in the order of their first sequences."""
    parents = list(range(len(sequences)))

    def first(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    seen: dict[str, int] = {}
    for number, sequence in enumerate(sequences):
        for response in sequence.responses:
            earlier = first(seen.setdefault(signals[response.turn_id].event_id, number))
            own = first(number)
            parents[max(earlier, own)] = min(earlier, own)
    groups: dict[int, list[Sequence]] = {}
    for number, sequence in enumerate(sequences):
        groups.setdefault(first(number), []).append(sequence)
    return list(groups.values())


@dataclass(frozen=True)
class _Known:
    """What an event's members say of it; `rows`: those with tokens. An empty response is a member with l = 0."""

    number: int
    size: int
    rows: int
    tokens: int
    advantage: float
    weight: float


def check_events(signals: Mapping[str, Signal]) -> None:
    """Raise AgentRLError unless every event has all of its members, with one advantage and one weight."""
    _known_events(signals)


def _known_events(signals: Mapping[str, Signal]) -> dict[str, _Known]:
    members: dict[str, list[Signal]] = {}
    for signal in signals.values():
        members.setdefault(signal.event_id, []).append(signal)
    return {name: _known(number, name, items) for number, (name, items) in enumerate(members.items())}


def _known(number: int, name: str, members: Items[Signal]) -> _Known:
    size = members[0].event_size
    places = sorted(signal.member for signal in members)
    if places != list(range(size)) or any(signal.event_size != size for signal in members):
        raise AgentRLError(
            f"event {name}: members {places} of {size} are to be trained; an event is trained whole or not at all, "
            "so the advantage stage must leave out all of its rows"
        )
    if any(signal.source is not None for signal in members):
        raise AgentRLError(f"event {name} is replayed; loss.kind: set_clip trains this iteration's events alone")
    advantages = np.unique(np.concatenate([signal.advantage for signal in members]))
    weights = {signal.weight for signal in members}
    if len(advantages) > 1 or len(weights) > 1:
        raise AgentRLError(
            f"event {name}: its members have different advantages or loss weights; loss.kind: set_clip needs an "
            "advantage that credits the event as one action"
        )
    lengths = [len(signal.old) for signal in members]
    advantage = float(advantages[0]) if len(advantages) else 0.0
    return _Known(number, size, sum(length > 0 for length in lengths), sum(lengths), advantage, weights.pop())


class StepEvents:
    """The events of one optimizer step, from the log-probs of all of its responses before the step."""

    def __init__(
        self,
        batches: Items[PackedBatch],
        logps: Items[Floats],
        signals: Mapping[str, Signal],
        settings: SetClip,
    ) -> None:
        """logps: [T] of every micro-batch of the step.

        Raises AgentRLError for an event that is not whole: in `signals`, or among the responses of the step.
        """
        self._signals, self._settings, self._known = signals, settings, _known_events(signals)
        sums = self._sums(batches, logps)
        in_step = [one for one in self._known.values() if sums[one.number, 1] > 0]
        self._check_whole(in_step, sums)
        self._place = {one.number: place for place, one in enumerate(in_step)}
        facts = [(sums[one.number, 0], one.size, one.tokens, one.advantage, one.weight) for one in in_step]
        self._events = Events(*np.array(facts, np.float64).reshape(-1, 5).T)
        self._loss: EventLoss = event_loss(self._events, settings)

    def _sums(self, batches: Items[PackedBatch], logps: Items[Floats]) -> Floats:
        """Sum of l, and number of responses with tokens, of every known event in this step [N, 2]."""
        sums = np.zeros((len(self._known), 2))
        for batch, logp in zip(batches, logps, strict=True):
            factors = length_factor(np.array([span.stop - span.start for span in batch.spans], float), self._settings)
            for span, factor in zip(batch.spans, factors, strict=True):
                signal = self._signals[span.turn_id]
                log_ratio = factor * (logp[span.start : span.stop] - signal.old).sum()
                sums[self._known[signal.event_id].number] += log_ratio, 1.0
        return sums

    def _check_whole(self, in_step: Items[_Known], sums: Floats) -> None:
        names = list(self._known)
        for one in in_step:
            found = int(sums[one.number, 1])
            if found != one.rows:
                raise AgentRLError(
                    f"event {names[one.number]}: {found} of its {one.rows} responses are in this optimizer step; "
                    "an event belongs to one step with all of them"
                )

    def tokens(self, batch: PackedBatch, like: Tensor) -> EventTokens:
        """What the loss needs of the tokens of a micro-batch [T], of the type and on the device of `like`."""
        lengths = np.array([span.stop - span.start for span in batch.spans])
        names = [self._signals[span.turn_id].event_id for span in batch.spans]
        events = np.array([self._place[self._known[name].number] for name in names], np.int64)
        factors = length_factor(lengths.astype(float), self._settings)
        loss, counted = self._loss, self._events.tokens[events]

        def of_tokens(values: Floats) -> Tensor:
            return torch.from_numpy(np.repeat(values, lengths)).to(like.device, like.dtype)

        return EventTokens(
            coefficient=of_tokens(factors * loss.coefficient[events]),
            regulariser=of_tokens(factors * loss.regulariser[events]),
            objective=of_tokens((loss.share * loss.surrogate)[events] / counted),
        )

    def metrics(self) -> Metrics:
        """Of the whole step."""
        return event_metrics(self._events, self._loss)
