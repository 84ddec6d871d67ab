"""What models say about every token of sampled responses: log-probs, entropies, and the critic's values."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.config import Packing, TrainingConfig
from agentbench_rl.policies.critic import Critic
from agentbench_rl.training.logprobs import head_logprobs, precision, row_states, trained_states
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.prefix_tree import LAYOUTS
from agentbench_rl.training.sequences import responses_of, training_sequences
from agentbench_rl.training.sharding import empty_batch, micro_batch_budget, own_batches, shard_model
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import Progress, silent

if TYPE_CHECKING:
    import pandas as pd

#: Numbers [T] of a batch's trained tokens, by name.
Measure = Callable[[PackedBatch], Mapping[str, Tensor]]
TokenScores = dict[str, NDArray[np.float32]]


def score_tokens(
    model: Any,
    measure: Measure,
    rollouts: pd.DataFrame,
    micro_batch_tokens: int,
    dtype: Literal["float32", "bfloat16"] = "float32",
    packing: Packing = "auto",
    progress: Progress = silent,
    turns: Container[str] | None = None,
    world: World = ALONE,
) -> dict[str, TokenScores]:
    """What `measure` says of every response's tokens [T], by name and turn_id; the model's training mode is restored.

    `progress` is told of every micro-batch of this process. `turns`: the responses to measure; null: all. world: the
    processes that share the work, over which the model is sharded; each returns all scores.
    """
    own: dict[str, TokenScores] = {}
    sequences = training_sequences(rollouts)
    if turns is not None:
        sequences = responses_of(sequences, turns)
    training = model.training
    model.eval()
    with torch.no_grad(), precision(model, dtype) if world.mesh is None else nullcontext():
        batches = LAYOUTS[packing](sequences, micro_batch_budget(sequences, micro_batch_tokens, world))
        numbers = own_batches(batches, world)
        for done, number in enumerate(numbers, start=1):
            batch = empty_batch() if number is None else batches[number]
            for name, values in measure(batch).items():
                measured = values.float().cpu().numpy()
                found = own.setdefault(name, {})
                found |= {span.turn_id: measured[span.start : span.stop] for span in batch.spans}
            progress(done, len(numbers))
    model.train(training)
    return _merged(world.gather(own))


def _merged(parts: list[dict[str, TokenScores]]) -> dict[str, TokenScores]:
    """The scores of all processes."""
    first, *others = parts
    for part in others:
        for name, scores in part.items():
            first[name] |= scores
    return first


def policy_measure(model: Any, critic: Critic | None = None, *, entropy: bool = False) -> Measure:
    """`logprobs` and `entropies` under `model`; `values` and `next_values` of a critic that shares its backbone."""

    def measure(batch: PackedBatch) -> dict[str, Tensor]:
        states = row_states(model.base_model, batch)
        logp, entropies = head_logprobs(model, trained_states(states, batch), batch, entropy=entropy)
        scores = {"logprobs": logp} if entropies is None else {"logprobs": logp, "entropies": entropies}
        return scores if critic is None else scores | _values(critic, states, batch)

    return measure


def sharded(model: Any, measure: Measure, training: TrainingConfig, world: World) -> Measure:
    """Shard a causal LM; returns `measure`, which reads its weights, as it is then to be called."""
    shard_model(model, measure, training, world)
    return measure if world.mesh is None else model


def value_measure(critic: Critic) -> Measure:
    """`values` of the states before the tokens and `next_values` of those after them, by a critic of its own."""
    return lambda batch: _values(critic, row_states(critic.backbone, batch), batch)


def _values(critic: Critic, states: Tensor, batch: PackedBatch) -> dict[str, Tensor]:
    after = states.index_select(0, batch.after.to(states.device))
    return {"values": critic(trained_states(states, batch)), "next_values": critic(after)}
