"""The algorithm-blind trainer: responses, advantages and a loss in; changed weights, metrics and optimizer state out.

An update makes `epochs` x `minibatches` AdamW steps over a seeded permutation of the sequences. Normalisers count a
whole step, so how it is cut into micro-batches changes neither loss nor gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.algorithms.losses import LossParts, Normalisers, TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.loss import LossConfig
from agentbench_rl.training.checkpoint import TrainerState, make_optimizer, optimizer_moments
from agentbench_rl.training.logprobs import precision, token_logprobs
from agentbench_rl.training.packing import LAYOUTS, PackedBatch
from agentbench_rl.training.sequences import Sequence, training_sequences
from agentbench_rl.training.signals import Signal, training_signals
from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    import pandas as pd

MAX_CONSECUTIVE_SKIPS = 3
Metrics = dict[str, float]


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of each optimizer step, seconds of each step (never part of the metrics), and the state to go on from."""

    steps: list[Metrics]
    seconds: list[float]
    state: TrainerState


class _NonFiniteError(Exception):
    """What was not finite, and where."""


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
) -> UpdateResult:
    """Train `model` in place on the responses that `advantages` lists with a positive loss weight.

    Old log-probs come from `scores` (recompute) or from the sampler; reference log-probs from `scores` when
    loss.kl_coefficient is set. A step whose loss, log-probs or gradient are not finite is skipped and counted.
    Raises AgentRLError for inputs that do not fit together, and after three skipped steps in a row (counted across
    updates by the state).
    """
    state = state or TrainerState()
    signals = training_signals(rollouts, scores, advantages, old_logprobs, reference=loss.kl_coefficient > 0)
    sequences = _trained(training_sequences(rollouts), signals)
    optimizer = make_optimizer(model, state, training.learning_rate, training.weight_decay)
    result = UpdateResult([], [], state)
    model.eval()  # no dropout: the trained policy is the one that sampled and was scored
    for epoch in range(training.epochs):
        order = np.random.default_rng([seed, iteration, epoch]).permutation(len(sequences))
        for minibatch, chosen in enumerate(np.array_split(order, training.minibatches)):
            began = time.perf_counter()
            where = f"iteration {iteration}, epoch {epoch}, minibatch {minibatch}"
            part = [sequences[index] for index in chosen]
            metrics, state = _step(model, optimizer, state, part, signals, training, loss, where)
            result.steps.append(metrics)
            result.seconds.append(time.perf_counter() - began)
            if on_step is not None:
                on_step(metrics, result.seconds[-1])
    return replace(result, state=replace(state, moments=optimizer_moments(model, optimizer)))


def _trained(sequences: Items[Sequence], signals: dict[str, Signal]) -> list[Sequence]:
    """Keep the responses with tokens and a signal, and the sequences with such responses."""
    kept = []
    for sequence in sequences:
        responses = tuple(item for item in sequence.responses if item.turn_id in signals and item.stop > item.start)
        if responses:
            kept.append(replace(sequence, responses=responses))
    return kept


def _step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    sequences: list[Sequence],
    signals: dict[str, Signal],
    training: TrainingConfig,
    loss: LossConfig,
    where: str,
) -> tuple[Metrics, TrainerState]:
    """One optimizer step; without sequences there is none, only metrics that say so."""
    if not sequences:
        return {"trained_tokens": 0.0, "processed_tokens": 0.0, "optimizer_steps": 0.0, "skipped_steps": 0.0}, state
    batches = LAYOUTS[training.packing](sequences, training.micro_batch_tokens)
    optimizer.zero_grad(set_to_none=True)
    fault = ""
    shares: list[LossParts] = []
    norm = math.nan
    try:
        shares = accumulate_gradients(model, batches, signals, loss, training.dtype)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clip))
        if not math.isfinite(norm):
            raise _NonFiniteError(f"the gradient norm is {norm}")
        optimizer.step()
        state = replace(state, steps=state.steps + 1, consecutive_skips=0)
    except _NonFiniteError as error:
        fault = str(error)
        state = replace(state, skipped=state.skipped + 1, consecutive_skips=state.consecutive_skips + 1)
    optimizer.zero_grad(set_to_none=True)
    if state.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
        raise AgentRLError(
            f"{state.consecutive_skips} optimizer steps in a row were not finite; the last one in {where}: {fault}. "
            "Lower training.learning_rate, or look at the rewards and log-probs of these turns"
        )
    metrics = {} if fault else _metrics(shares) | {"gradient_norm": norm}
    metrics |= {"optimizer_steps": float(not fault), "skipped_steps": float(bool(fault))}
    return metrics | _token_counts(batches), state


def accumulate_gradients(
    model: Any,
    batches: Items[PackedBatch],
    signals: dict[str, Signal],
    loss: LossConfig,
    dtype: Literal["float32", "bfloat16"],
) -> list[LossParts]:
    """Add the gradient of one optimizer step's loss, micro-batch by micro-batch, normalised over all of them."""
    spans = [span for batch in batches for span in batch.spans]
    normalisers = count_normalisers(
        [signals[span.turn_id].weight for span in spans], [span.stop - span.start for span in spans]
    )
    shares = []
    for batch in batches:
        with precision(model, dtype):
            logp, entropy = token_logprobs(model, batch, entropy=True)
        part = _loss_share(logp, entropy, batch, signals, loss, normalisers)
        part.loss.backward()  # type: ignore[no-untyped-call]
        shares.append(replace(part, loss=part.loss.detach()))
    return shares


def _loss_share(
    logp: Tensor,
    entropy: Tensor | None,
    batch: PackedBatch,
    signals: dict[str, Signal],
    loss: LossConfig,
    normalisers: Normalisers,
) -> LossParts:
    lengths = np.array([span.stop - span.start for span in batch.spans])
    chosen = [signals[span.turn_id] for span in batch.spans]
    weight = np.repeat([signal.weight for signal in chosen], lengths)

    def tensor(values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(values).to(logp.device, logp.dtype)

    references = [signal.reference for signal in chosen if signal.reference is not None]
    tokens = TrainedTokens(
        logp=logp,
        old_logp=tensor(np.concatenate([signal.old for signal in chosen])),
        reference_logp=tensor(np.concatenate(references)) if references else None,
        entropy=entropy,
        advantage=tensor(np.concatenate([signal.advantage for signal in chosen])),
        weight=tensor(weight),
        row=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(logp.device),
        lengths=torch.from_numpy(lengths).to(logp.device),
    )
    bad = torch.nonzero(~torch.isfinite(logp.detach())).flatten()
    if len(bad):
        turn = batch.spans[int(tokens.row[bad[0]])].turn_id
        raise _NonFiniteError(f"{len(bad)} of {len(logp)} log-probs of a micro-batch, first in turn {turn}")
    part = policy_loss(tokens, loss, normalisers)
    if not torch.isfinite(part.loss.detach()):
        turns = f"turns {batch.spans[0].turn_id} ... {batch.spans[-1].turn_id}"
        raise _NonFiniteError(f"the loss is {float(part.loss)} in the micro-batch of {turns}")
    return part


def _metrics(shares: list[LossParts]) -> Metrics:
    """Loss and its terms, weighted means over trained tokens, and the largest ratio of a step."""
    metrics = {"loss": sum(float(share.loss) for share in shares)}
    for name in shares[0].objective:
        metrics[f"loss_{name}"] = sum(float(share.objective[name]) for share in shares)
    sums = {name: sum(float(share.sums[name]) for share in shares) for name in shares[0].sums}
    total = sums.pop("tokens")
    metrics |= {f"{name}_mean" if name == "ratio" else name: value / total for name, value in sums.items()}
    return metrics | {f"{name}_max": max(float(share.maxima[name]) for share in shares) for name in shares[0].maxima}


def _token_counts(batches: list[PackedBatch]) -> Metrics:
    size = sum(batch.input_ids.numel() for batch in batches)
    return {
        "trained_tokens": float(sum(len(batch.targets) for batch in batches)),
        "processed_tokens": float(size),
        "padding_share": 1 - sum(batch.tokens for batch in batches) / size,
        "micro_batches": float(len(batches)),
    }
