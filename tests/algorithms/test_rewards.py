"""Which reward is credited, and what a row alone is charged or paid."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError

PAIR = [
    Chain("g", [0.0, 1.0], ["a", "b"], [True, False], process=[0.5, -0.25], tokens=[9, 3], tool_calls=[2, 0]),
    Chain("g", [0.0], ["a"], process=[-0.75], tokens=[5], tool_calls=[1]),
]


def advantages(chains: list[Chain], config: AlgorithmConfig, **given: object) -> list[float]:
    return compute_advantages(*frames(chains), config, **given)[0]["advantage"].tolist()


def with_reward(estimator: str = "group_mean", **reward: object) -> AlgorithmConfig:
    return algorithm(estimator, parts={"reward": reward})


def test_the_process_view_credits_the_dense_rewards_and_only_them() -> None:
    found = advantages(PAIR, with_reward(view="process", scale=4.0))
    np.testing.assert_allclose(found, [2.0, 2.0, -2.0])
    rollouts, episodes = frames(PAIR)
    blind = rollouts.assign(reward=np.nan), episodes.assign(**{"return": np.nan})
    assert compute_advantages(*blind, with_reward(view="process", scale=4.0))[0]["advantage"].tolist() == found
    steps = advantages(PAIR, algorithm("gigpo", parts={"reward": {"view": "process"}}, normalisation="mean", omega=1.0))
    np.testing.assert_allclose(
        steps, [0.5 + (0.5 - 0.95 * 0.25 + 0.75) / 2, 0.5, -0.5 - (0.5 - 0.95 * 0.25 + 0.75) / 2]
    )


def test_the_success_view_pays_no_partial_credit() -> None:
    rollouts, episodes = frames([Chain("g", [0.0, 0.67], ["a", "b"]), Chain("g", [1.0], ["a"])])
    episodes["ending"] = ["failure", "success"]
    for estimator, expected in (("group_mean", [-0.5, -0.5, 0.5]), ("gigpo", [-0.5 - 0.5, -0.5, 0.5 + 0.5])):
        changes = {"normalisation": "mean", "omega": 1.0} if estimator == "gigpo" else {}
        config = algorithm(estimator, parts={"reward": {"view": "success"}}, **changes)
        found, _ = compute_advantages(rollouts, episodes, config)
        np.testing.assert_allclose(found["advantage"], expected)


def test_each_charge_and_bonus_stays_with_its_row() -> None:
    plain = np.array([0.5, 0.5, -0.5])
    for reward, own in [
        ({"invalid_action_penalty": 0.1}, [0.0, -0.1, 0.0]),
        ({"overlong": {"max_tokens": 10, "cache_tokens": 5, "factor": 2.0}}, [-1.6, 0.0, 0.0]),
        ({"tool_call_bonus": {"value": 0.1}}, [0.2, 0.0, 0.1]),
    ]:
        mean = (own[0] + own[2]) / 2
        np.testing.assert_allclose(advantages(PAIR, with_reward(**reward)), plain + own - mean)


def test_step_returns_carry_the_charges_of_their_own_row_only() -> None:
    charged = {"invalid_action_penalty": 0.1, "tool_call_bonus": {"value": 1.0}}
    hgpo = {"normalisation": "mean", "history": 0, "epsilon": 1e-12}
    alone = advantages(PAIR, algorithm("hgpo", parts={"reward": charged}, **hgpo))
    np.testing.assert_allclose(alone, [(0.95 + 2.0 - 1.0) / 2, 0.0, -(0.95 + 2.0 - 1.0) / 2])


@pytest.mark.parametrize(("iteration", "share"), [(0, 1.0), (5, 0.5), (10, 0.0), (11, 0.0)])
def test_the_tool_call_bonus_decays_by_a_cosine(iteration: int, share: float) -> None:
    config = with_reward(tool_call_bonus={"value": 1.0, "decay_iterations": 10})
    np.testing.assert_allclose(
        advantages(PAIR, config, iteration=iteration), [0.5 + 0.5 * share, 0.5 - 1.5 * share, -0.5 - 0.5 * share]
    )


def test_a_response_beyond_the_limit_is_charged_no_more_than_one_at_it() -> None:
    chains = [Chain("g", [0.0], tokens=[10]), Chain("g", [0.0], tokens=[1000])]
    config = with_reward(overlong={"max_tokens": 10, "cache_tokens": 5})
    assert advantages(chains, config) == [0.0, 0.0]


def test_kl_in_the_reward_is_charged_to_the_row_and_needs_both_log_probs() -> None:
    chains = [Chain("g", [1.0], tokens=[2]), Chain("g", [0.0], tokens=[1])]
    turns = frames(chains)[0]["turn_id"]
    scores = pd.DataFrame(
        {"turn_id": turns, "old_logprobs": [[-1.0, -2.0], [-0.5]], "reference_logprobs": [[-1.5, -3.0], [-0.25]]}
    )
    config = with_reward(kl_coefficient=0.5)
    np.testing.assert_allclose(advantages(chains, config, scores=scores), [0.5 - 0.4375, -0.5 + 0.4375])
    with pytest.raises(AgentRLError, match="reference_logprobs"):
        advantages(chains, config, scores=scores.drop(columns="reference_logprobs"))


@pytest.mark.parametrize(
    ("config", "column", "message"),
    [
        (with_reward(view="process"), "process_reward", "dense rewards"),
        (algorithm("mt_grpo"), "process_reward", "dense rewards"),
        (algorithm("gdpo"), "process_reward", "dense rewards"),
        (with_reward(tool_call_bonus={"value": 1.0}), "tool_calls", "tool calls|tool call bonus"),
        (with_reward(overlong={"max_tokens": 8, "cache_tokens": 2}), "response_tokens", "response lengths"),
        (algorithm("opo"), "response_tokens", "response lengths"),
        (algorithm("remax"), "chains_greedy", "greedy baselines"),
        (algorithm("group_mean", parts={"selection": {"drop_repetitive": 0.5}}), "response_ids", "response tokens"),
    ],
)
def test_what_a_method_needs_and_a_file_lacks_is_named(config: AlgorithmConfig, column: str, message: str) -> None:
    rollouts, episodes = frames(PAIR)
    with pytest.raises(AgentRLError, match=message):
        compute_advantages(rollouts.drop(columns=column, errors="ignore"), episodes, config)


@pytest.mark.parametrize("estimator", ["mt_grpo", "gdpo"])
def test_a_null_among_the_dense_rewards_is_no_zero(estimator: str) -> None:
    rollouts, episodes = frames(PAIR)
    rollouts.loc[0, "process_reward"] = None
    with pytest.raises(AgentRLError, match=r"process_reward of turn '0/0' is null.*dense rewards"):
        compute_advantages(rollouts, episodes, algorithm(estimator))


@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_a_reward_that_is_no_finite_number_is_refused(broken: float) -> None:
    rollouts, episodes = frames(PAIR)
    rollouts.loc[1, "reward"] = broken
    unrecorded = episodes.assign(**{"return": np.nan})
    with pytest.raises(AgentRLError, match="return of '0' is null or not finite"):
        compute_advantages(rollouts, unrecorded, algorithm("group_zscore"))
    with pytest.raises(AgentRLError, match="reward of turn '0/1' is null or not finite"):
        compute_advantages(rollouts, episodes, algorithm("gigpo"))


def test_null_tool_calls_are_refused() -> None:
    rollouts, episodes = frames(PAIR)
    rollouts["tool_calls"] = [1.0, np.nan, 0.0]
    with pytest.raises(AgentRLError, match="tool_calls of turn '0/1'"):
        compute_advantages(rollouts, episodes, with_reward(tool_call_bonus={"value": 1.0}))
