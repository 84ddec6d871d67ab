"""Behaviour cloning: cross-entropy on trained tokens, AdamW, linear warm-up and cosine decay to 10 %.

A batch is cut into micro-batches of rows of similar length, which the processes of a world share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import torch

from agentbench_rl.config import SftConfig
from agentbench_rl.training.checkpoint import TrainerState, make_optimizer, trained_parameters
from agentbench_rl.training.logprobs import trained_pass
from agentbench_rl.training.packing import row_batches
from agentbench_rl.training.sequences import Sequence
from agentbench_rl.training.sharding import empty_batch, full, micro_batch_budget, own_batches
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import AgentRLError

FINAL_RATE = 0.1
Metrics = dict[str, float]


def behaviour_clone(
    model: Any,
    sequences: Items[Sequence],
    sft: SftConfig,
    on_step: Callable[[int, Metrics], None] | None = None,
    world: World = ALONE,
) -> Metrics:
    """Train `model` in place for exactly `sft.steps` steps; `on_step` gets each step's number and metrics.

    world: the processes that share the work; all are told the same, and the model is sharded over them.
    Returns the first and last loss and the totals of optimizer steps, trained and processed tokens.
    Raises AgentRLError when no sequence has a trained token, or when a loss or gradient is not finite.
    """
    usable = [item for item in sequences if any(response.stop > response.start for response in item.responses)]
    if sft.steps and not usable:
        raise AgentRLError("behaviour cloning: no demonstration has a trained token; raise demos.episodes")
    parameters = trained_parameters(model)
    optimizer = make_optimizer(parameters, TrainerState(), sft.learning_rate, sft.weight_decay)
    stream = _batches(usable, sft)
    history = []
    model.eval()  # no dropout: equal inputs give equal weights
    for step in range(sft.steps):
        rate = sft.learning_rate * schedule(step, sft.steps, sft.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        metrics = _accumulate(model, next(stream), sft.batch_tokens, world) | {"learning_rate": rate}
        norm = float(full(torch.nn.utils.clip_grad_norm_(parameters.values(), sft.gradient_clip)))
        if not (math.isfinite(metrics["loss"]) and math.isfinite(norm)):
            raise AgentRLError(
                f"behaviour cloning, step {step}: loss {metrics['loss']}, gradient norm {norm}; lower sft.learning_rate"
            )
        optimizer.step()
        metrics["gradient_norm"] = norm
        history.append(metrics)
        if on_step is not None:
            on_step(step, metrics)
    if not history:
        return {"optimizer_steps": 0.0}
    totals = {name: sum(metrics[name] for metrics in history) for name in ("trained_tokens", "processed_tokens")}
    ends = {"first_loss": history[0]["loss"], "last_loss": history[-1]["loss"]}
    return {"optimizer_steps": float(len(history)), **totals, **ends}


def schedule(step: int, steps: int, warmup: int) -> float:
    """Share of the peak learning rate at 0-based `step`: linear warm-up to 1, then cosine to 0.1 at the last step."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup - 1)
    return FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def _batches(sequences: list[Sequence], sft: SftConfig) -> Iterator[list[Sequence]]:
    """Endless batches of at most `sft.batch_tokens` tokens without padding; every epoch is shuffled anew."""
    generator = np.random.default_rng(sft.seed)
    while True:
        batch: list[Sequence] = []
        for index in generator.permutation(len(sequences)):
            if sum(len(item.token_ids) for item in [*batch, sequences[index]]) > sft.batch_tokens and batch:
                yield batch
                batch = []
            batch.append(sequences[index])
        yield batch


def _accumulate(model: Any, sequences: list[Sequence], batch_tokens: int, world: World) -> Metrics:
    """Add the gradient of the mean loss of a batch's trained tokens; returns the loss and the tokens it took."""
    batches = row_batches(sequences, micro_batch_budget(sequences, batch_tokens, world))
    trained = sum(len(batch.targets) for batch in batches)
    shares: dict[int, float] = {}
    for number in own_batches(batches, world):
        batch = empty_batch() if number is None else batches[number]
        share = -trained_pass(model, batch, "float32", entropy=False)[1].sum() / trained
        share.backward()  # type: ignore[no-untyped-call]
        if number is not None:
            shares[number] = float(share.detach())
    everywhere = {number: share for part in world.gather(shares) for number, share in part.items()}
    return {
        "loss": sum(everywhere[number] for number in range(len(batches))),
        "trained_tokens": float(trained),
        "processed_tokens": float(sum(batch.input_ids.numel() for batch in batches)),
    }
