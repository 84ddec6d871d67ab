"""Made-up rollouts of a team, whose responses are members of events, and the set clip of a step on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from agentbench_rl.config.loss import LossConfig
from agentbench_rl.training.gradients import Metrics, accumulate_gradients, loss_metrics
from agentbench_rl.training.packing import PackedBatch, row_batches
from agentbench_rl.training.sequences import Sequence as Tokens
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import Signal, training_signals
from agentbench_rl.training.trainer import trained_sequences
from tests.training.models import VOCABULARY
from tests.training.updates import scores_of

SIZES = [1, 3, 2, 4, 1, 2]


def team_rollouts(sizes: Sequence[int] = SIZES, policies: Sequence[str] = ("policy",), seed: int = 0) -> pd.DataFrame:
    """One root per member of events of the given sizes, played in turn by the policies; one response is empty."""
    rng = np.random.default_rng(seed)
    places = [(event, size, member) for event, size in enumerate(sizes) for member in range(size)]
    rows = []
    for number, (event, size, member) in enumerate(places):
        length = 0 if number == 2 else int(rng.integers(1, 6))
        rows.append(
            {
                "turn_id": f"v{event}.m{member}",
                "parent_id": None,
                "extends_parent": False,
                "event_id": f"v{event}",
                "event_size": size,
                "member": member,
                "policy": policies[number % len(policies)],
                "prompt_ids": rng.integers(0, VOCABULARY, int(rng.integers(1, 9))),
                "response_ids": rng.integers(0, VOCABULARY, length),
                "response_logprobs": -4 - rng.random(length),
            }
        )
    return pd.DataFrame(rows)


def event_advantages(rollouts: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """One advantage and one loss weight per event."""
    rng = np.random.default_rng(seed)
    numbers = {event: (rng.normal(), 0.5 + rng.random()) for event in rollouts["event_id"].unique()}
    advantage, weight = zip(*(numbers[event] for event in rollouts["event_id"]), strict=True)
    return rollouts[["turn_id", "event_id"]].assign(advantage=advantage, loss_weight=weight)


def team_signals(model: Any, rollouts: pd.DataFrame, advantages: pd.DataFrame | None = None) -> dict[str, Signal]:
    """Signals whose old log-probs lie around the model's, differently for every response."""
    scores = scores_of(model, rollouts)
    rng = np.random.default_rng(2)
    scores["old_logprobs"] = [old + 0.3 * rng.normal(size=len(old)) for old in scores["old_logprobs"]]
    told = event_advantages(rollouts) if advantages is None else advantages
    return training_signals(rollouts, scores, told, "recompute", reference=True)


def team_sequences(rollouts: pd.DataFrame, signals: dict[str, Signal]) -> list[Tokens]:
    return trained_sequences(training_sequences(rollouts), signals)


def step_gradients(
    models: Mapping[str, Any],
    batches: Mapping[str, Sequence[PackedBatch]],
    signals: dict[str, Signal],
    loss: LossConfig,
) -> tuple[dict[str, torch.Tensor], Metrics]:
    """Gradient of every model, flat, and metrics of the step."""
    for model in models.values():
        model.zero_grad(set_to_none=False)
    metrics = loss_metrics(accumulate_gradients(models, batches, signals, loss, "float32"))
    return {name: flat_gradient(model) for name, model in models.items()}, metrics


def flat_gradient(model: Any) -> torch.Tensor:
    return torch.cat(
        [
            value.new_zeros(value.numel()) if value.grad is None else value.grad.flatten().clone()
            for value in model.parameters()
        ]
    )


def by_policy(
    sequences: Sequence[Tokens], signals: dict[str, Signal], tokens: int = 4096
) -> dict[str, list[PackedBatch]]:
    owners = [signals[sequence.responses[0].turn_id].policy for sequence in sequences]
    return {
        name: row_batches([one for one, owner in zip(sequences, owners, strict=True) if owner == name], tokens)
        for name in dict.fromkeys(owners)
    }
