"""The gradient of one optimizer step of the policies, micro-batch by micro-batch.

Normalisers, gates and set ratios count a whole step, so how it is cut into micro-batches, over models and over
processes changes neither loss nor gradient; nor does leaving out responses that have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentbench_rl.algorithms.losses import (
    LossParts,
    TrainedTokens,
    count_normalisers,
    needs_gate,
    policy_loss,
    set_loss,
    step_gate,
)
from agentbench_rl.config.loss import ClipCov, KlCov, LossConfig, ResponseLoss, SetClip
from agentbench_rl.training.critic import ValueLoss
from agentbench_rl.training.events import StepEvents
from agentbench_rl.training.logprobs import trained_pass
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.sharding import empty_batch, own_batches
from agentbench_rl.training.signals import Floats, Signal
from agentbench_rl.training.steps import Metrics, agree
from agentbench_rl.training.world import ALONE, World

T = TypeVar("T")
Dtype = Literal["float32", "bfloat16"]
#: Share of a micro-batch, told with its tokens, in the loss of the step.
Share = Callable[[PackedBatch, TrainedTokens], LossParts]


@dataclass(frozen=True)
class StepLoss:
    """Shares of all micro-batches in the loss of one optimizer step, in their order, and the metrics of its events."""

    shares: list[LossParts]
    events: Metrics


@dataclass(frozen=True)
class _Pass:
    """A pass through a model: a micro-batch of this process with its number in the step, or an empty one (None)."""

    model: Any
    batch: PackedBatch
    number: int | None


def accumulate_gradients(
    models: Mapping[str, Any],
    batches: Mapping[str, Items[PackedBatch]],
    signals: Mapping[str, Signal],
    loss: LossConfig,
    dtype: Dtype,
    seed: Items[int] = (0,),
    values: ValueLoss | None = None,
    world: World = ALONE,
    whole: Mapping[str, Items[PackedBatch]] | None = None,
) -> StepLoss:
    """Add the gradient of one optimizer step's loss, and of the value loss of a critic that shares the backbone.

    models, batches: by policy; the batches of a policy hold the responses that are trained with its model. whole: those
    with all responses that count in the step, if it has some without a gradient; they are computed only where a loss
    looks at the whole step first. seed: numbers that name the step, for losses that choose tokens at random. All
    processes of a world are told the same; each computes some of the micro-batches, and sharded models add up the
    gradients.
    Raises NonFiniteError, in all processes, for log-probs or a loss that is not finite in one of them.
    """
    whole = batches if whole is None else whole
    step = [batch for items in whole.values() for batch in items]
    firsts = _first_pass(_own_passes(models, whole, world), dtype, world) if two_passes(loss) else []
    events: Metrics = {}
    sources: dict[str, float | None] = {}
    if isinstance(loss, SetClip):
        share, events = _event_share(step, firsts, signals, loss)
    else:
        sources = _sources([signals[span.turn_id] for batch in step for span in batch.spans])
        share = _response_share(step, firsts, signals, loss, seed, sources)
    shares: dict[int, LossParts] = {}
    faults: list[str] = []
    for one in _own_passes(models, batches, world):
        states, logp, entropy = trained_pass(one.model, one.batch, dtype, entropy=True)
        total = logp.sum()
        if one.number is not None:
            part = share(one.batch, _tokens(logp, entropy, one.batch, signals, sources))
            faults += _log_prob_faults(logp.detach(), one.batch) or _loss_faults(part, one.batch)
            total = part.loss
            shares[one.number] = replace(part, loss=part.loss.detach())
        if values is not None:
            total = total + values.share(states, one.batch)
        total.backward()  # type: ignore[no-untyped-call]
    agree(faults, world)
    return StepLoss(_in_order(shares, world), events)


def two_passes(loss: LossConfig) -> bool:
    """Whether the loss looks at the log-probs of a whole optimizer step before its first micro-batch is trained."""
    return needs_gate(loss) or isinstance(loss, SetClip)


def _own_passes(models: Mapping[str, Any], batches: Mapping[str, Items[PackedBatch]], world: World) -> list[_Pass]:
    """The passes of this process, as many through every model as in the others; at least one, for a gradient of 0."""
    passes = []
    first = 0
    for name, items in batches.items():
        for number in own_batches(items, world) or [None]:
            if number is None:
                passes.append(_Pass(models[name], empty_batch(), None))
            else:
                passes.append(_Pass(models[name], items[number], first + number))
        first += len(items)
    return passes


def _first_pass(passes: Items[_Pass], dtype: Dtype, world: World) -> list[Floats]:
    """Log-probs [T] of every micro-batch of the step, without gradient."""
    logps: dict[int, Floats] = {}
    faults: list[str] = []
    for one in passes:
        with torch.no_grad():
            _, logp, _ = trained_pass(one.model, one.batch, dtype, entropy=False)
        if one.number is not None:
            faults += _log_prob_faults(logp, one.batch)
            logps[one.number] = logp.double().cpu().numpy()
    agree(faults, world)
    return _in_order(logps, world)


def _in_order(own: dict[int, T], world: World) -> list[T]:
    """What all processes found of their micro-batches, in the order of the step."""
    if world.size == 1:
        return list(own.values())
    found = {number: _portable(item) for number, item in own.items()}
    merged = {number: item for part in world.gather(found) for number, item in part.items()}
    return [merged[number] for number in sorted(merged)]


def _portable(item: T) -> T:
    """The item without tensors that only one process can reach."""
    if not isinstance(item, LossParts):
        return item
    terms = ({name: value.cpu() for name, value in of.items()} for of in (item.objective, item.sums, item.maxima))
    return LossParts(item.loss.cpu(), *terms)  # type: ignore[return-value]


def _event_share(
    batches: Items[PackedBatch], firsts: Items[Floats], signals: Mapping[str, Signal], loss: SetClip
) -> tuple[Share, Metrics]:
    step = StepEvents(batches, firsts, signals, loss)
    return lambda batch, tokens: set_loss(tokens, loss, step.tokens(batch, tokens.logp)), step.metrics()


def _response_share(
    batches: Items[PackedBatch],
    firsts: Items[Floats],
    signals: Mapping[str, Signal],
    loss: ResponseLoss,
    seed: Items[int],
    sources: dict[str, float | None],
) -> Share:
    spans = [span for batch in batches for span in batch.spans]
    chosen = [signals[span.turn_id] for span in spans]
    normalisers = count_normalisers(
        [signal.weight for signal in chosen],
        [span.stop - span.start for span in spans],
        [_number(signal, sources) for signal in chosen],
        list(sources.values()),
        _own_weight(signals.values()),
    )
    if not needs_gate(loss):
        return lambda _, tokens: policy_loss(tokens, loss, normalisers)
    gates = _gates(batches, firsts, signals, loss, seed, sources)

    def gated(batch: PackedBatch, tokens: TrainedTokens) -> LossParts:
        gate = torch.cat([gates[span.turn_id] for span in batch.spans])
        return policy_loss(replace(tokens, gate=gate.to(tokens.logp.device)), loss, normalisers)

    return gated


def _gates(
    batches: Items[PackedBatch],
    firsts: Items[Floats],
    signals: Mapping[str, Signal],
    loss: ClipCov | KlCov,
    seed: Items[int],
    sources: dict[str, float | None],
) -> dict[str, Tensor]:
    """Of each response the tokens [T] that the loss chooses over the whole step, by turn_id."""
    spans = [span for batch in batches for span in batch.spans]
    chosen = [signals[span.turn_id] for span in spans]
    gate = step_gate(
        loss,
        np.concatenate(firsts),
        np.concatenate([signal.old for signal in chosen]),
        np.concatenate([signal.advantage for signal in chosen]),
        [span.stop - span.start for span in spans],
        [span.turn_id for span in spans],
        seed,
        [_number(signal, sources) for signal in chosen],
    )
    parts = np.split(gate, np.cumsum([span.stop - span.start for span in spans])[:-1])
    return {span.turn_id: torch.from_numpy(part) for span, part in zip(spans, parts, strict=True)}


def _sources(chosen: Iterable[Signal]) -> dict[str, float | None]:
    """Weights of the losses of a step's sources of replayed responses, in alphabetical order: source 1, 2, …"""
    weights = {signal.source: signal.source_weight for signal in chosen if signal.source is not None}
    return {name: weights[name] for name in sorted(weights)}


def _own_weight(signals: Iterable[Signal]) -> float:
    """Weight of the loss of this iteration's responses."""
    return next((float(one.source_weight) for one in signals if one.source is None and one.source_weight), 1.0)


def _number(signal: Signal, sources: dict[str, float | None]) -> int:
    return 0 if signal.source is None else 1 + list(sources).index(signal.source)


def _tokens(
    logp: Tensor,
    entropy: Tensor | None,
    batch: PackedBatch,
    signals: Mapping[str, Signal],
    sources: dict[str, float | None],
) -> TrainedTokens:
    """What the loss reads of a micro-batch."""
    lengths = np.array([span.stop - span.start for span in batch.spans])
    chosen = [signals[span.turn_id] for span in batch.spans]

    def tensor(parts: Items[Floats]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(logp.device, logp.dtype)

    def optional(parts: Items[Floats | None]) -> Tensor | None:
        known = [part for part in parts if part is not None]
        return tensor(known) if known else None

    def behaviour() -> Tensor | None:
        """Log-probs under the policies that sampled: the old one, but of some replayed responses."""
        if all(signal.behaviour is None for signal in chosen):
            return None
        return tensor([signal.old if signal.behaviour is None else signal.behaviour for signal in chosen])

    def repeated(numbers: list[Any]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(numbers), lengths)).to(logp.device)

    return TrainedTokens(
        logp=logp,
        old_logp=tensor([signal.old for signal in chosen]),
        reference_logp=optional([signal.reference for signal in chosen]),
        entropy=entropy,
        advantage=tensor([signal.advantage for signal in chosen]),
        weight=repeated([signal.weight for signal in chosen]).to(logp.dtype),
        row=repeated(list(range(len(lengths)))),
        lengths=torch.from_numpy(lengths).to(logp.device),
        entropy_scores=optional([signal.entropy_score for signal in chosen]),
        source=repeated([_number(signal, sources) for signal in chosen]) if sources else None,
        behaviour_logp=behaviour(),
    )


def _loss_faults(part: LossParts, batch: PackedBatch) -> list[str]:
    if torch.isfinite(part.loss.detach()):
        return []
    turns = f"turns {batch.spans[0].turn_id} ... {batch.spans[-1].turn_id}"
    return [f"the loss is {float(part.loss)} in the micro-batch of {turns}"]


def _log_prob_faults(logp: Tensor, batch: PackedBatch) -> list[str]:
    bad = torch.nonzero(~torch.isfinite(logp)).flatten()
    if not len(bad):
        return []
    turn = next(span.turn_id for span in batch.spans if span.stop > int(bad[0]))
    return [f"{len(bad)} of {len(logp)} log-probs of a micro-batch, first in turn {turn}"]


def loss_metrics(step: StepLoss) -> Metrics:
    """Loss and its terms, weighted means over the tokens of either kind of response, and largest numbers.

    Of the responses that were computed with a gradient; where there are none, the loss alone.
    """
    shares = step.shares
    if not shares:
        return {"loss": 0.0} | step.events
    metrics = {"loss": sum(float(share.loss) for share in shares)}
    for name in shares[0].objective:
        metrics[f"loss_{name}"] = sum(float(share.objective[name]) for share in shares)
    sums = {name: sum(float(share.sums[name]) for share in shares) for name in shares[0].sums}
    totals = {name: sums.pop(name) for name in ("tokens", "replayed_tokens") if name in sums}
    for name, value in sums.items():
        if total := totals["replayed_tokens" if name.startswith("replayed_") else "tokens"]:
            metrics["ratio_mean" if name == "ratio" else name] = value / total
    maxima = {f"{name}_max": max(float(share.maxima[name]) for share in shares) for name in shares[0].maxima}
    return metrics | maxima | step.events
