"""Gradients of a tabular policy, one logit per step, through the loss that trains."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.loss import TokenClip

LOSS = TokenClip(dual_clip=None, kl_coefficient=0.0)


def group_gradients(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, method: AlgorithmConfig, odds: list[float]
) -> np.ndarray:
    """Gradient of every group [groups, steps], summed over its responses, by the logits of action 1; odds: its p."""
    return gradients(rollouts, compute_advantages(rollouts, episodes, method)[0], odds)


def gradients(rollouts: pd.DataFrame, advantages: pd.DataFrame, odds: list[float]) -> np.ndarray:
    """Ascent direction [groups, steps] of each group of rollouts, in the order of their first rows."""
    trained = advantages[advantages["loss_weight"] > 0]
    rows = rollouts.set_index("turn_id").loc[trained["turn_id"]]
    names = rollouts["group_id"].drop_duplicates()
    group = torch.tensor(pd.Index(names).get_indexer(rows["group_id"]))
    step = torch.tensor(rows["step"].to_numpy(dtype=np.int64))
    action = torch.tensor(rows["action"].astype(int).to_numpy() == 1)
    logits = torch.logit(torch.tensor(odds, dtype=torch.float64)).repeat(len(names), 1).requires_grad_()
    chosen = logits[group, step]
    logp = torch.nn.functional.logsigmoid(torch.where(action, chosen, -chosen))
    count = len(trained)
    normalisers = count_normalisers(trained["loss_weight"].tolist(), [1] * count)
    tokens = TrainedTokens(
        logp=logp,
        old_logp=logp.detach(),
        reference_logp=None,
        entropy=None,
        advantage=torch.tensor(trained["advantage"].to_numpy()),
        weight=torch.tensor(trained["loss_weight"].to_numpy()),
        row=torch.arange(count),
        lengths=torch.ones(count, dtype=torch.int64),
    )
    policy_loss(tokens, LOSS, normalisers).loss.backward()
    assert logits.grad is not None
    return np.asarray(-normalisers.tokens * logits.grad)
