"""RSPO on bandits of three arms: one loop by hand, and dense rewards that are misaligned on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from chain_frames import algorithm
from replay_runs import advantage_table, frames, iteration_files
from torch import Tensor

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.dense_rewards import dense_rewards, explorer_method
from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.algorithms.reward_swap import draw, loop_counts, mixed, swap
from agentbench_rl.config.loss import MovedCentre
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.types import rollout_schema

LOSS = MovedCentre(kl_coefficient=0.0)
METHOD = algorithm("group_zscore", parts={"schedule": {"kind": "reward_swap"}, "loss": {"kind": "moved_centre"}})
Frames = tuple[pd.DataFrame, pd.DataFrame]


def schedule(share: float = 0.125, mix: str = "weighted") -> RewardSwap:
    return RewardSwap.model_validate({"kind": "reward_swap", "period": 1, "share": share, "mix": mix})


def played(arms: Sequence[int], outcomes: Sequence[float], dense: Sequence[float], iteration: int) -> Frames:
    """Episodes of one turn in the columns of the contract; the response is the arm."""
    rollouts, episodes = frames(iteration_files({"g": list(outcomes)}, iteration))
    leaves = rollouts[rollouts["step"] == 1].reset_index(drop=True)
    responses = pd.Series([[int(arm)] for arm in arms])
    changes = {"parent_id": None, "step": 0, "extends_parent": False}
    return leaves.assign(**changes, response_ids=responses, process_reward=dense), episodes


def dense_credit(found: Frames) -> pa.Table:
    placed = dense_rewards(*found, schedule(), [0])
    return advantage_table(compute_advantages(placed, found[1], explorer_method(METHOD, schedule()))[0])


def outcome_credit(found: Frames) -> pa.Table:
    return advantage_table(compute_advantages(*found, METHOD)[0])


def log_probs(theta: Tensor, rollouts: pd.DataFrame) -> Tensor:
    arms = torch.tensor([int(ids[0]) for ids in rollouts["response_ids"]])
    return torch.log_softmax(theta, 0)[arms]


def ascent(theta: Tensor, rollouts: pd.DataFrame, advantages: pa.Table) -> Tensor:
    """Ascent direction at theta of the objective that the update has."""
    rows = advantages.to_pandas()
    theta = theta.clone().requires_grad_()
    logp = log_probs(theta, rollouts.set_index("turn_id").loc[rows["turn_id"]])
    count, source = len(rows), rows["source"].notna().astype(int).tolist()
    told = [None if values is None else values[0] for values in rows["behaviour_logprobs"]]
    old = logp.detach()
    behaviour = [value if one is None else one for one, value in zip(told, old.tolist(), strict=True)]
    weights = advantages["source_weight"].to_pylist()
    replayed = [weight for weight, of in zip(weights, source, strict=True) if of]
    tokens = TrainedTokens(
        logp=logp,
        old_logp=old,
        reference_logp=None,
        entropy=None,
        advantage=torch.tensor(rows["advantage"].to_numpy(np.float64)),
        weight=torch.ones(count, dtype=torch.float64),
        row=torch.arange(count),
        lengths=torch.ones(count, dtype=torch.int64),
        source=torch.tensor(source) if replayed else None,
        behaviour_logp=torch.tensor(behaviour, dtype=torch.float64),
    )
    normalisers = count_normalisers([1.0] * count, [1] * count, source, replayed[:1], weights[0] or 1.0)
    (gradient,) = torch.autograd.grad(policy_loss(tokens, LOSS, normalisers).loss, theta)
    return -gradient


def outcome_step(
    theta: Tensor, explorer: Tensor, explored: Frames, fresh: Frames, swaps: RewardSwap, units: int
) -> Tensor:
    """Ascent direction of one outcome update, with episodes that the explorer collected."""
    behaviour = pd.Series([[value] for value in log_probs(explorer, explored[0]).tolist()])
    buffer = swap(*explored, behaviour, outcome_credit(explored).to_pandas())
    counts = dataclasses.replace(loop_counts(schedule(), 16, 8), units=units)
    drawn = draw(buffer, swaps, counts, 0, [0])
    both = mixed(outcome_credit(fresh), drawn, swaps)
    every = pd.concat([fresh[0], drawn.select(rollout_schema().names).to_pandas()], ignore_index=True)
    return ascent(theta, every, both)


def test_one_full_loop(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-6 one full loop on a 3-armed bandit (SGD lr=1, k=1, N=4, 2 replayed)"]
    theta = torch.tensor(vector["theta_A"], dtype=torch.float64)
    phase1 = played(vector["phase1_actions"], [0.0] * 4, vector["dense_rewards"], 0)
    credit = dense_credit(phase1)
    assert credit["advantage"].to_pylist() == pytest.approx(vector["A_dense"], abs=1e-6)
    explorer = theta + ascent(theta, phase1[0], credit)
    assert explorer.tolist() == pytest.approx(vector["theta_B"], abs=1e-6)
    assert torch.softmax(explorer, 0).tolist() == pytest.approx(vector["pi_B"], abs=1e-6)
    explored = played(vector["B_actions"], vector["B_outcomes"], [0.5] * 4, 1)
    assert outcome_credit(explored)["advantage"].to_pylist() == pytest.approx(vector["A_off"], abs=1e-6)
    fresh = played(vector["on_actions"], vector["on_outcomes"], [0.5] * 4, 2)
    assert outcome_credit(fresh)["advantage"].to_pylist() == pytest.approx(vector["A_on"], abs=1e-6)
    cases = {
        "alpha_1_8_weighted": (schedule(), 2),
        "alpha_1_3_concat": (schedule(1 / 3, "concat"), 2),
        "alpha_0_plain_GRPO": (schedule(0.0), 0),
    }
    for name, (swaps, units) in cases.items():
        direction = outcome_step(theta, explorer, explored, fresh, swaps, units)
        expected = vector["updates"][name]
        assert direction.tolist() == pytest.approx(expected["grad"], abs=1e-6)
        assert (theta + direction).tolist() == pytest.approx(expected["theta"], abs=1e-6)
        assert torch.softmax(theta + direction, 0).tolist() == pytest.approx(expected["pi"], abs=1e-6)


def test_p12_only_dense_training_ends_at_the_dense_optimum_the_swap_at_that_of_the_outcome() -> None:
    outcome, dense = np.array([0.0, 1.0, 0.0]), np.array([0.1, 0.1, 0.9])
    rng = np.random.default_rng(0)

    def sample(theta: Tensor, iteration: int) -> Frames:
        arms = rng.choice(3, 8, p=torch.softmax(theta, 0).numpy())
        return played(arms, outcome[arms], dense[arms], iteration)

    def dense_update(theta: Tensor) -> Tensor:
        found = sample(theta, 0)
        return theta + 3.0 * ascent(theta, found[0], dense_credit(found))

    hacked = swapped = torch.zeros(3, dtype=torch.float64)
    for _ in range(12):
        hacked = dense_update(hacked)
        explorer = dense_update(swapped)
        explored, fresh = sample(explorer, 1), sample(swapped, 2)
        swapped = swapped + 3.0 * outcome_step(swapped, explorer, explored, fresh, schedule(), 2)
    assert torch.softmax(hacked, 0)[2] > 0.8
    assert torch.softmax(swapped, 0)[1] > 0.8
