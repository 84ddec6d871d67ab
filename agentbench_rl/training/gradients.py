"""The gradient of one optimizer step of the policy, micro-batch by micro-batch.

Normalisers and gates count a whole step, so how it is cut into micro-batches changes neither loss nor gradient.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.algorithms.losses import (
    LossParts,
    Normalisers,
    TrainedTokens,
    count_normalisers,
    needs_gate,
    policy_loss,
    step_gate,
)
from agentbench_rl.config.loss import LossConfig
from agentbench_rl.training.critic import ValueLoss
from agentbench_rl.training.logprobs import head_logprobs, precision, row_states, token_logprobs, trained_states
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.signals import Floats, Signal
from agentbench_rl.training.steps import Metrics, NonFiniteError

Dtype = Literal["float32", "bfloat16"]


def accumulate_gradients(
    model: Any,
    batches: Items[PackedBatch],
    signals: dict[str, Signal],
    loss: LossConfig,
    dtype: Dtype,
    seed: Items[int] = (0,),
    values: ValueLoss | None = None,
) -> list[LossParts]:
    """Add the gradient of one optimizer step's loss, and of the value loss of a critic that shares the backbone.

    seed: numbers that name the step, for losses that choose tokens at random.
    Raises NonFiniteError for log-probs or a loss that is not finite.
    """
    spans = [span for batch in batches for span in batch.spans]
    chosen = [signals[span.turn_id] for span in spans]
    sources = _sources(chosen)
    normalisers = count_normalisers(
        [signal.weight for signal in chosen],
        [span.stop - span.start for span in spans],
        [_number(signal, sources) for signal in chosen],
        list(sources.values()),
        _own_weight(chosen),
    )
    gates = _gates(model, batches, signals, loss, dtype, seed, sources)
    shares = []
    for batch, gate in zip(batches, gates, strict=True):
        with precision(model, dtype):
            states = trained_states(row_states(model.base_model, batch), batch)
            logp, entropy = head_logprobs(model, states, batch, entropy=True)
        tokens = _tokens(logp, entropy, batch, signals, sources, gate)
        part = _loss_share(tokens, batch, loss, normalisers)
        total = part.loss if values is None else part.loss + values.share(states, batch)
        total.backward()  # type: ignore[no-untyped-call]
        shares.append(replace(part, loss=part.loss.detach()))
    return shares


def _own_weight(signals: Items[Signal]) -> float:
    """Weight of the loss of this iteration's responses."""
    return next((float(one.source_weight) for one in signals if one.source is None and one.source_weight), 1.0)


def _sources(signals: Items[Signal]) -> dict[str, float | None]:
    """Weights of the losses of the sources of replayed responses, by name in alphabetical order: source 1, 2, …"""
    weights = {signal.source: signal.source_weight for signal in signals if signal.source is not None}
    return {name: weights[name] for name in sorted(weights)}


def _number(signal: Signal, sources: dict[str, float | None]) -> int:
    return 0 if signal.source is None else 1 + list(sources).index(signal.source)


def _gates(
    model: Any,
    batches: Items[PackedBatch],
    signals: dict[str, Signal],
    loss: LossConfig,
    dtype: Dtype,
    seed: Items[int],
    sources: dict[str, float | None],
) -> list[NDArray[np.bool_] | None]:
    """Of each micro-batch the tokens that the loss chooses over the whole step, by a first pass over all of them."""
    if not needs_gate(loss):
        return [None] * len(batches)
    logps = []
    for batch in batches:
        with torch.no_grad(), precision(model, dtype):
            logp, _ = token_logprobs(model, batch, entropy=False)
        _check_finite(logp, batch)
        logps.append(logp.double().cpu().numpy())
    spans = [span for batch in batches for span in batch.spans]
    chosen = [signals[span.turn_id] for span in spans]
    gate = step_gate(
        loss,
        np.concatenate(logps),
        np.concatenate([signal.old for signal in chosen]),
        np.concatenate([signal.advantage for signal in chosen]),
        [span.stop - span.start for span in spans],
        [span.turn_id for span in spans],
        seed,
        [_number(signal, sources) for signal in chosen],
    )
    return list(np.split(gate, np.cumsum([len(logp) for logp in logps])[:-1]))


def _tokens(
    logp: Tensor,
    entropy: Tensor | None,
    batch: PackedBatch,
    signals: dict[str, Signal],
    sources: dict[str, float | None],
    gate: NDArray[np.bool_] | None,
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
        gate=None if gate is None else torch.from_numpy(gate).to(logp.device),
        source=repeated([_number(signal, sources) for signal in chosen]) if sources else None,
        behaviour_logp=behaviour(),
    )


def _loss_share(tokens: TrainedTokens, batch: PackedBatch, loss: LossConfig, normalisers: Normalisers) -> LossParts:
    _check_finite(tokens.logp.detach(), batch)
    part = policy_loss(tokens, loss, normalisers)
    if not torch.isfinite(part.loss.detach()):
        turns = f"turns {batch.spans[0].turn_id} ... {batch.spans[-1].turn_id}"
        raise NonFiniteError(f"the loss is {float(part.loss)} in the micro-batch of {turns}")
    return part


def _check_finite(logp: Tensor, batch: PackedBatch) -> None:
    bad = torch.nonzero(~torch.isfinite(logp)).flatten()
    if len(bad):
        turn = next(span.turn_id for span in batch.spans if span.stop > int(bad[0]))
        raise NonFiniteError(f"{len(bad)} of {len(logp)} log-probs of a micro-batch, first in turn {turn}")


def loss_metrics(shares: list[LossParts]) -> Metrics:
    """Loss and its terms, weighted means over the trained tokens of either kind of response, and largest numbers."""
    metrics = {"loss": sum(float(share.loss) for share in shares)}
    for name in shares[0].objective:
        metrics[f"loss_{name}"] = sum(float(share.objective[name]) for share in shares)
    sums = {name: sum(float(share.sums[name]) for share in shares) for name in shares[0].sums}
    totals = {name: sums.pop(name) for name in ("tokens", "replayed_tokens") if name in sums}
    for name, value in sums.items():
        if total := totals["replayed_tokens" if name.startswith("replayed_") else "tokens"]:
            metrics["ratio_mean" if name == "ratio" else name] = value / total
    return metrics | {f"{name}_max": max(float(share.maxima[name]) for share in shares) for name in shares[0].maxima}
