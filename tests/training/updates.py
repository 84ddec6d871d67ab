"""Updates of a model on made-up scores and advantages, shared by the tests of the trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.loss import TokenClip
from agentbench_rl.training.scoring import TokenScores, policy_measure, score_tokens
from agentbench_rl.training.trainer import UpdateResult, update_policy

TRAINING = TrainingConfig(iterations=1, learning_rate=1e-2, micro_batch_tokens=256)


def score_rollouts(model: Any, rollouts: pd.DataFrame, micro_batch_tokens: int) -> TokenScores:
    """Log-probs [T] (nats) of every response's tokens, by turn_id and in the order of the rollouts."""
    scores = score_tokens(model, policy_measure(model), rollouts, micro_batch_tokens)
    return {turn_id: scores["logprobs"][turn_id] for turn_id in rollouts["turn_id"]}


def scores_of(model: Any, rollouts: pd.DataFrame, shift: float = 0.0) -> pd.DataFrame:
    """Old log-probs of the model itself (moved by `shift`), reference log-probs a little apart."""
    old = [values + shift for values in score_rollouts(model, rollouts, 4096).values()]
    return pd.DataFrame(
        {"turn_id": rollouts["turn_id"], "old_logprobs": old, "reference_logprobs": [values - 0.1 for values in old]}
    )


def advantages_of(rollouts: pd.DataFrame, weight: float = 1.0) -> pd.DataFrame:
    values = np.random.default_rng(1).normal(size=len(rollouts))
    return pd.DataFrame(
        {
            "turn_id": rollouts["turn_id"],
            "event_id": rollouts["turn_id"],
            "loss_weight": weight,
            "advantage": values,
            "token_advantages": None,
        }
    )


def update(model: Any, rollouts: pd.DataFrame, **changes: Any) -> UpdateResult:
    """An update of the one policy, going on from `state`."""
    state = changes.pop("state", None)
    arguments: dict[str, Any] = {
        "states": {} if state is None else {"policy": state},
        "scores": changes["scores"] if "scores" in changes else scores_of(model, rollouts),
        "advantages": advantages_of(rollouts),
        "training": TRAINING,
        "loss": TokenClip(),
        "old_logprobs": "recompute",
        "seed": 0,
        "iteration": 0,
    } | changes
    return update_policy({"policy": model}, rollouts=rollouts, **arguments)


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))
