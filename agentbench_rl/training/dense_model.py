"""Training and use of a model of dense rewards: the squared error of an episode's sum over its turns.

An episode's turns may stand in several sequences and micro-batches, and its loss couples them. So a step first computes
all scores, then the loss and its derivative by every score, and last the gradient of the scores so weighted. Processes
that share a step tell each other the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentbench_rl.algorithms.trajectory_regression import regression_loss, turn_scores
from agentbench_rl.config import DenseModelConfig, TrainingConfig
from agentbench_rl.policies.dense_model import DenseModel
from agentbench_rl.training.checkpoint import TrainerState, make_optimizer, trained_parameters
from agentbench_rl.training.logprobs import precision, row_states
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.prefix_tree import LAYOUTS
from agentbench_rl.training.sequences import Sequence, training_sequences
from agentbench_rl.training.sft import schedule
from agentbench_rl.training.sharding import (
    empty_batch,
    full,
    micro_batch_budget,
    own_batches,
    shard_head,
    shard_model,
)
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import AgentRLError, Progress, silent

if TYPE_CHECKING:
    import pandas as pd

Metrics = dict[str, float]


@dataclass(frozen=True)
class LabelledEpisode:
    """An episode's turns as token sequences, and its outcome."""

    sequences: tuple[Sequence, ...]
    outcome: float


def turn_sequences(model: DenseModel, policy_tokenizer: Any, rollouts: pd.DataFrame) -> list[Sequence]:
    """The rollouts as token sequences of the model; where its tokens are its own, the policy's text is encoded anew.

    Raises AgentRLError for a response without a token, since a turn is read by its last one.
    """
    if model.own_tokens:

        def encode(ids: Items[int]) -> list[int]:
            # Prompts and responses apart, so that a turn ends where it ended.
            text = policy_tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
            return list(model.tokenizer.encode(text, add_special_tokens=False))

        rollouts = rollouts.assign(**{name: rollouts[name].map(encode) for name in ("prompt_ids", "response_ids")})
    empty = rollouts["response_ids"].map(len) == 0
    if empty.any():
        raise AgentRLError(f"rollouts: the response of turn {rollouts['turn_id'][empty].iloc[0]!r} has no token")
    return training_sequences(rollouts)


def shard_dense_model(model: DenseModel, training: TrainingConfig, world: World) -> None:
    """Shard language model and head; in a world without a mesh the model stays what it is."""
    shard_model(model.language_model, partial(_turn_states, model.language_model), training, world)
    shard_head(model.head, training, world)


def dense_scores(
    model: DenseModel,
    sequences: Items[Sequence],
    training: TrainingConfig,
    progress: Progress = silent,
    world: World = ALONE,
) -> tuple[dict[str, float], int]:
    """Dense rewards by turn_id, and the tokens, with padding, that went through the model; told of every micro-batch.

    world: the processes that share the work, over which the model is sharded.
    Raises AgentRLError for one that is not a number.
    """
    batches = _batches(sequences, training, world)
    parts = _first_pass(model, batches, training, world, progress)
    scores = {
        span.turn_id: float(score)
        for batch, part in zip(batches, parts, strict=True)
        for span, score in zip(batch.spans, part.float().numpy(), strict=True)
    }
    lost = [turn for turn, score in scores.items() if not math.isfinite(score)]
    if lost:
        raise AgentRLError(
            f"the dense reward model says {scores[lost[0]]} of turn {lost[0]!r}; train it anew with a lower "
            "dense_model.learning_rate"
        )
    return scores, sum(batch.input_ids.numel() for batch in batches)


def train_dense_model(
    model: DenseModel,
    episodes: Items[LabelledEpisode],
    settings: DenseModelConfig,
    training: TrainingConfig,
    on_step: Callable[[int, Metrics], None],
    world: World = ALONE,
) -> None:
    """Train `model` in place for `settings.steps` steps; `on_step` gets each step's number and metrics.

    world: the processes that share the work; all are told the same, and the model is sharded over them.
    Raises AgentRLError when a loss or gradient is not finite.
    """
    parameters = trained_parameters(model)
    optimizer = make_optimizer(parameters, TrainerState(), settings.learning_rate, settings.weight_decay)
    stream = _draws(episodes, settings)
    model.eval()  # no dropout: a step computes every score twice
    for step in range(settings.steps):
        rate = settings.learning_rate * schedule(step, settings.steps, settings.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        metrics = accumulate(model, next(stream), training, world)
        norm = float(full(torch.nn.utils.clip_grad_norm_(parameters.values(), settings.gradient_clip)))
        if not (math.isfinite(metrics["loss"]) and math.isfinite(norm)):
            raise AgentRLError(
                f"dense reward model, step {step}: loss {metrics['loss']}, gradient norm {norm}; lower "
                "dense_model.learning_rate"
            )
        optimizer.step()
        on_step(step, metrics | {"gradient_norm": norm, "learning_rate": rate})


def accumulate(
    model: DenseModel, episodes: Items[LabelledEpisode], training: TrainingConfig, world: World = ALONE
) -> Metrics:
    """Add the gradient of the episodes' loss to the model's weights; returns the loss and the tokens it took."""
    owner = {
        response.turn_id: place
        for place, episode in enumerate(episodes)
        for sequence in episode.sequences
        for response in sequence.responses
    }
    sequences = [sequence for episode in episodes for sequence in episode.sequences]
    batches = _batches(sequences, training, world)
    parts = _first_pass(model, batches, training, world)
    scores = torch.cat(parts).to(model.device).requires_grad_()
    of_episode = torch.tensor([owner[span.turn_id] for batch in batches for span in batch.spans], device=scores.device)
    outcomes = torch.tensor([episode.outcome for episode in episodes], dtype=scores.dtype, device=scores.device)
    loss = regression_loss(scores, of_episode, outcomes)
    (slopes,) = torch.autograd.grad(loss, scores)
    of_batches = torch.split(slopes, [len(part) for part in parts])
    for number in own_batches(batches, world):
        share = _scores(model, empty_batch() if number is None else batches[number], training)
        (share if number is None else share * of_batches[number]).sum().backward()  # type: ignore[no-untyped-call]
    return {"loss": float(loss.detach()), "processed_tokens": 2.0 * sum(batch.input_ids.numel() for batch in batches)}


def fit(sums: NDArray[np.float64], outcomes: NDArray[np.float64]) -> Metrics:
    """Mean squared error of predicted outcomes [E]; explained variance 1 - Var(R - R^) / Var(R), if R varies."""
    metrics = {"loss": float(np.mean((sums - outcomes) ** 2))}
    if outcomes.max() > outcomes.min():
        metrics["explained_variance"] = float(1.0 - np.var(outcomes - sums) / np.var(outcomes))
    return metrics


def _batches(sequences: Items[Sequence], training: TrainingConfig, world: World) -> list[PackedBatch]:
    return LAYOUTS[training.packing](sequences, micro_batch_budget(sequences, training.micro_batch_tokens, world))


def _first_pass(
    model: DenseModel,
    batches: Items[PackedBatch],
    training: TrainingConfig,
    world: World,
    progress: Progress = silent,
) -> list[Tensor]:
    """Dense rewards [Q] of every micro-batch's turns, in the computer's memory, without gradient."""
    own: dict[int, Tensor] = {}
    numbers = own_batches(batches, world)
    with torch.no_grad():
        for done, number in enumerate(numbers, start=1):
            scores = _scores(model, empty_batch() if number is None else batches[number], training)
            if number is not None:
                own[number] = scores.cpu()
            progress(done, len(numbers))
    everywhere = {number: scores for part in world.gather(own) for number, scores in part.items()}
    return [everywhere[number] for number in range(len(batches))]


def _scores(model: DenseModel, batch: PackedBatch, training: TrainingConfig) -> Tensor:
    """Dense rewards [Q] of a micro-batch's turns, each from the state after its last token."""
    language_model = model.language_model
    with precision(language_model, training.dtype):
        sharded = isinstance(language_model, FSDPModule)  # then its weights are gathered for its forward pass alone
        states = language_model(batch) if sharded else _turn_states(language_model, batch)
        return turn_scores(model(states))


def _turn_states(language_model: Any, batch: PackedBatch) -> Tensor:
    """The states [Q, H] after the turns' last tokens."""
    states = row_states(language_model.base_model, batch)
    last = batch.after[[span.stop - 1 for span in batch.spans]]
    return states.index_select(0, last.to(states.device))


def _draws(episodes: Items[LabelledEpisode], settings: DenseModelConfig) -> Iterator[list[LabelledEpisode]]:
    """Endless batches of episodes; every pass over them is shuffled anew."""
    generator = np.random.default_rng(settings.seed)
    while True:
        order = generator.permutation(len(episodes))
        for first in range(0, len(order), settings.batch_episodes):
            yield [episodes[place] for place in order[first : first + settings.batch_episodes]]
