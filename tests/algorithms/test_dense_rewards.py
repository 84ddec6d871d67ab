"""What RSPO's phase 1 credits, and the learned dense reward."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from chain_frames import Chain, algorithm, frames
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.dense_rewards import dense_rewards, explorer_method
from agentbench_rl.algorithms.trajectory_regression import episode_sums, regression_loss, turn_scores
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.types import AgentRLError

SCHEDULE = RewardSwap(kind="reward_swap")
LOSS = {"kind": "moved_centre"}


def chains(dense: list[list[float]], outcomes: list[float], group: str = "g") -> list[Chain]:
    return [
        Chain(group, [0.0] * (len(turns) - 1) + [outcome], process=turns)
        for turns, outcome in zip(dense, outcomes, strict=True)
    ]


def test_the_swap_turns_the_ranking_of_a_group(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-5 swap flips the ranking of one group"]
    rollouts, episodes = frames(chains([[value] for value in vector["dense"]], vector["outcome"]))
    method = algorithm("group_zscore", parts={"schedule": {"kind": "reward_swap"}, "loss": LOSS})
    phase1 = compute_advantages(
        dense_rewards(rollouts, episodes, SCHEDULE, [0]), episodes, explorer_method(method, SCHEDULE)
    )[0]
    phase2 = compute_advantages(rollouts, episodes, method)[0]
    assert phase1["advantage"].tolist() == pytest.approx(vector["A_dense"], abs=1e-6)
    assert phase2["advantage"].tolist() == pytest.approx(vector["A_outcome"], abs=1e-6)


def test_the_explorer_is_the_host_with_another_reward() -> None:
    parts = {"schedule": {"kind": "reward_swap", "dense_scale": 0.5}, "loss": LOSS}
    method = algorithm("group_zscore", scale=10.0, penalty=0.1, parts=parts)
    schedule = SCHEDULE.model_copy(update={"dense_scale": 0.5})
    reward = explorer_method(method, schedule).reward
    assert (reward.view, reward.scale, reward.invalid_action_penalty) == ("process", 5.0, 0.1)
    outcome = schedule.model_copy(update={"source": "outcome"})
    assert explorer_method(method, outcome) == method


def test_the_sum_stands_on_the_last_turn_or_each_reward_on_its_own() -> None:
    dense = [[0.5, -0.25, 0.125], [0.75]]
    rollouts, episodes = frames(chains(dense, [0.0, 1.0]))
    last = dense_rewards(rollouts, episodes, SCHEDULE, [0])["process_reward"]
    assert last.tolist() == [0.0, 0.0, 0.375, 0.75]
    by_turn = SCHEDULE.model_copy(update={"dense_placement": "turn"})
    own = dense_rewards(rollouts, episodes, by_turn, [0])["process_reward"]
    assert own.tolist() == [0.5, -0.25, 0.125, 0.75]


def test_noise_stays_in_the_interval_and_does_not_depend_on_the_order_of_the_rows() -> None:
    rollouts, episodes = frames(chains([[0.9, -0.9]] * 200, [0.0] * 200))
    noisy = SCHEDULE.model_copy(update={"dense_noise": 0.3, "dense_placement": "turn"})
    found = dense_rewards(rollouts, episodes, noisy, [1, 2]).set_index("turn_id")["process_reward"]
    assert (found.abs() < 1.0).all()
    assert found.groupby(found > 0).std().min() > 0.1
    shuffled = rollouts.sample(frac=1.0, random_state=0)
    again = dense_rewards(shuffled, episodes, noisy, [1, 2]).set_index("turn_id")["process_reward"]
    pd.testing.assert_series_equal(again[found.index], found)
    assert not np.allclose(found, dense_rewards(rollouts, episodes, noisy, [1, 3])["process_reward"])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (1.0, r"process_reward of turn '0/1' is 1.0; dense rewards must lie in \(-1, 1\)"),
        (-2.0, "process_reward of turn '0/1' is -2.0"),
        (math.nan, "process_reward of turn '0/1' is null or not finite"),
        (math.inf, "process_reward of turn '0/1' is null or not finite"),
    ],
)
def test_a_dense_reward_outside_the_interval_is_refused_by_turn(bad: float, message: str) -> None:
    rollouts, episodes = frames(chains([[0.5, bad]], [1.0]))
    with pytest.raises(AgentRLError, match=message):
        dense_rewards(rollouts, episodes, SCHEDULE, [0])


def test_a_dense_reward_that_is_not_known_names_what_does_without_unless_a_model_told_it() -> None:
    rollouts, episodes = frames(chains([[0.5, math.nan]], [1.0]))
    remedy = r"schedule\.dense_reward: model learns them from outcomes, and schedule\.source: outcome explores without"
    with pytest.raises(AgentRLError, match=rf"needs dense rewards, and the environment has none there: {remedy}$"):
        dense_rewards(rollouts, episodes, SCHEDULE, [0])
    with pytest.raises(AgentRLError, match=r"this method needs dense rewards$"):
        dense_rewards(rollouts, episodes, SCHEDULE.model_copy(update={"dense_reward": "model"}), [0])


def test_episodes_that_a_fault_ended_need_no_dense_reward() -> None:
    rollouts, episodes = frames([*chains([[0.5]], [1.0]), Chain("g", [0.0], ending="env_error")])
    found = dense_rewards(rollouts, episodes, SCHEDULE, [0])["process_reward"]
    assert found[0] == 0.5
    assert np.isnan(found[1])


def test_a_learned_dense_reward_and_its_loss(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-4 dense process reward model"]
    scores = turn_scores(torch.tensor(vector["mlp_out"], dtype=torch.float64))
    episode, target = torch.zeros(3, dtype=torch.int64), torch.tensor([vector["target"]], dtype=torch.float64)
    assert scores.tolist() == pytest.approx(vector["r_hat"], abs=1e-6)
    assert episode_sums(scores, episode, 1).item() == pytest.approx(vector["R_hat"], abs=1e-6)
    assert regression_loss(scores, episode, target).item() == pytest.approx(vector["sq_err"], abs=1e-6)
    vector = vectors["RSPO-4b MSE over two trajectories"]
    sums, outcomes = (torch.tensor(vector[name], dtype=torch.float64) for name in ("R_hat", "R"))
    assert regression_loss(sums, torch.arange(2), outcomes).item() == pytest.approx(vector["loss"], abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    outputs=st.lists(st.floats(-50.0, 50.0), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_p11_learned_scores_stay_inside_the_interval_and_their_sum_knows_no_order(
    outputs: list[float], seed: int, dtype: torch.dtype
) -> None:
    scores = turn_scores(torch.tensor(outputs, dtype=dtype))
    assert (scores.abs() < 1.0).all()
    episode = torch.arange(len(outputs)) % 3
    order = torch.tensor(np.random.default_rng(seed).permutation(len(outputs)))
    sums = episode_sums(scores, episode, 3)
    torch.testing.assert_close(episode_sums(scores[order], episode[order], 3), sums)
    assert regression_loss(scores, episode, sums).item() == 0.0
    assert regression_loss(scores, episode, sums + 0.5).item() == pytest.approx(0.25, rel=1e-3)
