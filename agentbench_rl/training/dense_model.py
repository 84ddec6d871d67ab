"""Training and use of a model of dense rewards: the squared error of an episode's sum over its turns.

An episode's turns may stand in several sequences and micro-batches, and its loss couples them. So a step first computes
all scores, then the loss and its derivative by every score, and last the gradient of the scores so weighted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentbench_rl.algorithms.trajectory_regression import regression_loss, turn_scores
from agentbench_rl.config import DenseModelConfig, TrainingConfig
from agentbench_rl.policies.dense_model import DenseModel
from agentbench_rl.training.checkpoint import TrainerState, make_optimizer, trained_parameters
from agentbench_rl.training.logprobs import precision, row_states
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.prefix_tree import LAYOUTS
from agentbench_rl.training.sequences import Sequence, training_sequences
from agentbench_rl.training.sft import schedule
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


def dense_scores(
    model: DenseModel, sequences: Items[Sequence], training: TrainingConfig, progress: Progress = silent
) -> tuple[dict[str, float], int]:
    """Dense rewards by turn_id, and the tokens, with padding, that went through the model; told of every micro-batch.

    Raises AgentRLError for one that is not a number.
    """
    scores: dict[str, float] = {}
    batches = LAYOUTS[training.packing](sequences, training.micro_batch_tokens)
    with torch.no_grad():
        for done, batch in enumerate(batches, start=1):
            of_turns = _scores(model, batch, training).float().cpu().numpy()
            scores |= {span.turn_id: float(score) for span, score in zip(batch.spans, of_turns, strict=True)}
            progress(done, len(batches))
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
) -> None:
    """Train `model` in place for `settings.steps` steps; `on_step` gets each step's number and metrics.

    Raises AgentRLError when a loss or gradient is not finite.
    """
    optimizer = make_optimizer(trained_parameters(model), TrainerState(), settings.learning_rate, settings.weight_decay)
    stream = _draws(episodes, settings)
    model.eval()  # no dropout: a step computes every score twice
    for step in range(settings.steps):
        rate = settings.learning_rate * schedule(step, settings.steps, settings.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        metrics = accumulate(model, next(stream), training)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip))
        if not (math.isfinite(metrics["loss"]) and math.isfinite(norm)):
            raise AgentRLError(
                f"dense reward model, step {step}: loss {metrics['loss']}, gradient norm {norm}; lower "
                "dense_model.learning_rate"
            )
        optimizer.step()
        on_step(step, metrics | {"gradient_norm": norm, "learning_rate": rate})


def accumulate(model: DenseModel, episodes: Items[LabelledEpisode], training: TrainingConfig) -> Metrics:
    """Add the gradient of the episodes' loss to the model's weights; returns the loss and the tokens it took."""
    owner = {
        response.turn_id: place
        for place, episode in enumerate(episodes)
        for sequence in episode.sequences
        for response in sequence.responses
    }
    sequences = [sequence for episode in episodes for sequence in episode.sequences]
    batches = LAYOUTS[training.packing](sequences, training.micro_batch_tokens)
    with torch.no_grad():
        parts = [_scores(model, batch, training) for batch in batches]
    scores = torch.cat(parts).requires_grad_()
    of_episode = torch.tensor([owner[span.turn_id] for batch in batches for span in batch.spans], device=scores.device)
    outcomes = torch.tensor([episode.outcome for episode in episodes], dtype=scores.dtype, device=scores.device)
    loss = regression_loss(scores, of_episode, outcomes)
    (slopes,) = torch.autograd.grad(loss, scores)
    for batch, slope in zip(batches, torch.split(slopes, [len(part) for part in parts]), strict=True):
        (_scores(model, batch, training) * slope).sum().backward()  # type: ignore[no-untyped-call]
    return {"loss": float(loss.detach()), "processed_tokens": 2.0 * sum(batch.input_ids.numel() for batch in batches)}


def fit(sums: NDArray[np.float64], outcomes: NDArray[np.float64]) -> Metrics:
    """Mean squared error of predicted outcomes [E]; explained variance 1 - Var(R - R^) / Var(R), if R varies."""
    metrics = {"loss": float(np.mean((sums - outcomes) ** 2))}
    if outcomes.max() > outcomes.min():
        metrics["explained_variance"] = float(1.0 - np.var(outcomes - sums) / np.var(outcomes))
    return metrics


def _scores(model: DenseModel, batch: PackedBatch, training: TrainingConfig) -> Tensor:
    """Dense rewards [Q] of a micro-batch's turns, each from the state after its last token."""
    with precision(model, training.dtype):
        states = row_states(model.backbone, batch)
        last = batch.after[[span.stop - 1 for span in batch.spans]]
        return turn_scores(model(states.index_select(0, last.to(states.device))))


def _draws(episodes: Items[LabelledEpisode], settings: DenseModelConfig) -> Iterator[list[LabelledEpisode]]:
    """Endless batches of episodes; every pass over them is shuffled anew."""
    generator = np.random.default_rng(settings.seed)
    while True:
        order = generator.permutation(len(episodes))
        for first in range(0, len(order), settings.batch_episodes):
            yield [episodes[place] for place in order[first : first + settings.batch_episodes]]
