"""The gradient of one optimizer step of the policies, micro-batch by micro-batch.

Normalisers, gates and set ratios count a whole step, so how it is cut into micro-batches, over models and over
processes changes neither loss nor gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from agentbench_rl.algorithms.losses import (
    LossParts,
    Reduce,
    TrainedTokens,
    alone,
    count_normalisers,
    needs_gate,
    policy_loss,
    set_loss,
    step_gate,
)
from agentbench_rl.config.loss import ClipCov, KlCov, LossConfig, ResponseLoss, SetClip
from agentbench_rl.training.critic import ValueLoss
from agentbench_rl.training.events import StepEvents
from agentbench_rl.training.logprobs import head_logprobs, precision, row_states, token_logprobs, trained_states
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.signals import Floats, Signal
from agentbench_rl.training.steps import Metrics, NonFiniteError
from agentbench_rl.types import AgentRLError

Dtype = Literal["float32", "bfloat16"]
#: Share of a micro-batch, told by its number and its tokens, in the loss of the step.
Share = Callable[[int, TrainedTokens], LossParts]


@dataclass(frozen=True)
class StepLoss:
    """Shares of this process's micro-batches in the loss of one optimizer step, and the metrics of all its events."""

    shares: list[LossParts]
    events: Metrics


def accumulate_gradients(
    models: Mapping[str, Any],
    batches: Mapping[str, Items[PackedBatch]],
    signals: Mapping[str, Signal],
    loss: LossConfig,
    dtype: Dtype,
    seed: Items[int] = (0,),
    values: ValueLoss | None = None,
    reduce: Reduce = alone,
) -> StepLoss:
    """Add the gradient of one optimizer step's loss, and of the value loss of a critic that shares the backbone.

    models, batches: by policy; the batches of a policy hold the responses that are trained with its model. seed:
    numbers that name the step, for losses that choose tokens at random. With several processes, each has some of the
    step's batches (a policy's responses, and even an event's, may be spread over them) and all have the same signals;
    `reduce` adds up over them what the loss counts, and the caller adds up the gradients.
    Raises NonFiniteError for log-probs or a loss that is not finite.
    """
    work = [(models[name], batch) for name, items in batches.items() for batch in items]
    firsts = _first_pass(work, dtype) if two_passes(loss) else []
    events: Metrics = {}
    sources: dict[str, float | None] = {}
    if isinstance(loss, SetClip):
        share, events = _event_share([batch for _, batch in work], firsts, signals, loss, reduce)
    else:
        chosen = [signals[span.turn_id] for _, batch in work for span in batch.spans]
        sources = _sources(signals.values(), chosen, reduce)
        share = _response_share([batch for _, batch in work], firsts, signals, loss, seed, sources, reduce)
    shares = []
    for number, (model, batch) in enumerate(work):
        with precision(model, dtype):
            states = trained_states(row_states(model.base_model, batch), batch)
            logp, entropy = head_logprobs(model, states, batch, entropy=True)
        _check_finite(logp.detach(), batch)
        part = share(number, _tokens(logp, entropy, batch, signals, sources))
        _check_loss(part, batch)
        total = part.loss if values is None else part.loss + values.share(states, batch)
        total.backward()  # type: ignore[no-untyped-call]
        shares.append(replace(part, loss=part.loss.detach()))
    return StepLoss(shares, events)


def two_passes(loss: LossConfig) -> bool:
    """Whether the loss looks at the log-probs of a whole optimizer step before its first micro-batch is trained."""
    return needs_gate(loss) or isinstance(loss, SetClip)


def _first_pass(work: Items[tuple[Any, PackedBatch]], dtype: Dtype) -> list[Floats]:
    """Log-probs [T] of every micro-batch, without gradient."""
    logps = []
    for model, batch in work:
        with torch.no_grad(), precision(model, dtype):
            logp, _ = token_logprobs(model, batch, entropy=False)
        _check_finite(logp, batch)
        logps.append(logp.double().cpu().numpy())
    return logps


def _event_share(
    batches: Items[PackedBatch], firsts: Items[Floats], signals: Mapping[str, Signal], loss: SetClip, reduce: Reduce
) -> tuple[Share, Metrics]:
    step = StepEvents(batches, firsts, signals, loss, reduce)
    return lambda number, tokens: set_loss(tokens, loss, step.tokens(batches[number], tokens.logp)), step.metrics()


def _response_share(
    batches: Items[PackedBatch],
    firsts: Items[Floats],
    signals: Mapping[str, Signal],
    loss: ResponseLoss,
    seed: Items[int],
    sources: dict[str, float | None],
    reduce: Reduce,
) -> Share:
    spans = [span for batch in batches for span in batch.spans]
    chosen = [signals[span.turn_id] for span in spans]
    normalisers = count_normalisers(
        [signal.weight for signal in chosen],
        [span.stop - span.start for span in spans],
        [_number(signal, sources) for signal in chosen],
        list(sources.values()),
        _own_weight(signals.values()),
        reduce,
    )
    if not needs_gate(loss):
        return lambda _, tokens: policy_loss(tokens, loss, normalisers)
    if reduce is not alone:
        raise AgentRLError(f"loss.kind: {loss.kind} chooses among the tokens of a whole step: train in one process")
    gates = _gates(batches, firsts, signals, loss, seed, sources)
    return lambda number, tokens: policy_loss(
        replace(tokens, gate=gates[number].to(tokens.logp.device)), loss, normalisers
    )


def _gates(
    batches: Items[PackedBatch],
    firsts: Items[Floats],
    signals: Mapping[str, Signal],
    loss: ClipCov | KlCov,
    seed: Items[int],
    sources: dict[str, float | None],
) -> list[Tensor]:
    """Of each micro-batch the tokens [T] that the loss chooses over the whole step."""
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
    return [torch.from_numpy(part) for part in np.split(gate, np.cumsum([len(logp) for logp in firsts])[:-1])]


def _sources(signals: Iterable[Signal], chosen: Items[Signal], reduce: Reduce) -> dict[str, float | None]:
    """Weights of the losses of the step's sources of replayed responses, in alphabetical order: source 1, 2, …"""
    weights = {signal.source: signal.source_weight for signal in signals if signal.source is not None}
    names = sorted(weights)
    if not names:
        return {}
    counts = [sum(signal.source == name for signal in chosen) for name in names]
    in_step = reduce(torch.tensor(counts, dtype=torch.float64)).tolist()
    return {name: weights[name] for name, count in zip(names, in_step, strict=True) if count}


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


def _check_loss(part: LossParts, batch: PackedBatch) -> None:
    if not torch.isfinite(part.loss.detach()):
        turns = f"turns {batch.spans[0].turn_id} ... {batch.spans[-1].turn_id}"
        raise NonFiniteError(f"the loss is {float(part.loss)} in the micro-batch of {turns}")


def _check_finite(logp: Tensor, batch: PackedBatch) -> None:
    bad = torch.nonzero(~torch.isfinite(logp)).flatten()
    if len(bad):
        turn = next(span.turn_id for span in batch.spans if span.stop > int(bad[0]))
        raise NonFiniteError(f"{len(bad)} of {len(logp)} log-probs of a micro-batch, first in turn {turn}")


def loss_metrics(step: StepLoss) -> Metrics:
    """Loss and its terms, weighted means over the trained tokens of either kind of response, and largest numbers."""
    shares = step.shares
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
