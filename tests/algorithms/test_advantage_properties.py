"""What holds of every group-relative estimator, on random rollouts."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import ESTIMATORS, chains, methods

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.advantage import GroupMean, GroupZscore
from agentbench_rl.config.algorithm import AlgorithmConfig

#: Each group is worth the same whatever else is in the batch.
GROUP_WISE = tuple(name for name in ESTIMATORS if name not in ("gpg", "gdpo"))
properties = settings(max_examples=12, deadline=None)


def advantages(built: list[Chain], config: AlgorithmConfig) -> np.ndarray:
    return compute_advantages(*frames(built), config)[0]["advantage"].to_numpy()


def by_turn(rollouts: pd.DataFrame, episodes: pd.DataFrame, config: AlgorithmConfig) -> dict[str, float]:
    frame, _ = compute_advantages(rollouts, episodes, config)
    return dict(zip(frame["turn_id"], frame["advantage"], strict=True))


@given(chains(), methods(), st.randoms(use_true_random=False))
@properties
def test_permuting_rows_and_renaming_ids_changes_no_bit(built: list[Chain], config: AlgorithmConfig, random) -> None:
    rollouts, episodes = frames(built)
    expected = by_turn(rollouts, episodes, config)
    order, leaves = list(range(len(rollouts))), list(range(len(episodes)))
    random.shuffle(order)
    random.shuffle(leaves)
    shuffled, shuffled_episodes = rollouts.iloc[order], episodes.iloc[leaves]
    assert by_turn(shuffled, shuffled_episodes, config) == expected
    names = {name for column in IDS for name in rollouts[column].dropna()}
    rename = {name: f"n{random.random()}-{name}" for name in sorted(names)}
    renamed = shuffled.assign(**{name: shuffled[name].map(rename) for name in IDS})
    leaf = shuffled_episodes["leaf_turn_id"].map(rename)
    assert by_turn(renamed, shuffled_episodes.assign(leaf_turn_id=leaf), config) == {
        rename[turn]: advantage for turn, advantage in expected.items()
    }


IDS = ["turn_id", "parent_id", "task_id", "group_id", "tree_id", "anchor_key", "state_key"]


@given(chains(), methods())
@properties
def test_output_keeps_the_order_of_the_rollouts(built: list[Chain], config: AlgorithmConfig) -> None:
    rollouts, episodes = frames(built)
    frame, _ = compute_advantages(rollouts, episodes, config)
    kept = rollouts["turn_id"][rollouts["turn_id"].isin(set(frame["turn_id"]))]
    assert frame["turn_id"].tolist() == kept.tolist()
    assert list(frame.columns) == ["turn_id", "event_id", "loss_weight", "advantage"]
    assert frame["event_id"].tolist() == kept.tolist()
    assert (frame["loss_weight"] == 1.0).all()


@given(chains(), methods(GROUP_WISE))
@properties
def test_a_copy_of_a_group_under_fresh_ids_changes_nothing(built: list[Chain], config: AlgorithmConfig) -> None:
    rollouts, episodes = frames(built)
    copied, copied_episodes = frames([chain for chain in built if chain.group == "g0"], prefix="copy-")
    both = by_turn(pd.concat([copied, rollouts]), pd.concat([copied_episodes, episodes]), config)
    expected = by_turn(rollouts, episodes, config)
    assert {turn: both[turn] for turn in expected} == expected


@given(chains(faults=False), methods(), st.sampled_from(["env_error", "timeout", "grader_error"]))
@properties
def test_an_errored_episode_never_changes_an_advantage(built: list[Chain], config: AlgorithmConfig, fault: str) -> None:
    expected = advantages(built, config)
    broken = Chain("g0", [1.0, 0.0, 0.0], ["a", "b", "c"], [True, False, True], fault)
    frame, diagnostics = compute_advantages(*frames([*built, broken]), config)
    assert frame["advantage"].tolist() == expected.tolist()
    assert diagnostics["dropped_episodes"] == 1
    assert diagnostics["dropped_rows"] == 3


@given(chains(), methods(("group_zscore", "group_mean", "leave_one_out")), st.sampled_from([0.5, 3.0]))
@properties
def test_shifting_all_returns_changes_nothing(built: list[Chain], config: AlgorithmConfig, shift: float) -> None:
    config = config.model_copy(update={"advantage": config.advantage.model_copy(update={"singleton": "zero"})})
    rollouts, episodes = frames(built)
    shifted = episodes.assign(**{"return": episodes["return"] + shift})
    np.testing.assert_allclose(
        compute_advantages(rollouts, shifted, config)[0]["advantage"], advantages(built, config), atol=1e-6
    )


@given(chains(), st.sampled_from([2.0, 10.0]))
@properties
def test_scaling_rewards_changes_the_z_score_little_and_the_others_in_proportion(
    built: list[Chain], factor: float
) -> None:
    for estimator, expected_factor in (("group_zscore", 1.0), ("group_mean", factor), ("leave_one_out", factor)):
        plain = advantages(built, algorithm(estimator))
        scaled = advantages(built, algorithm(estimator, scale=factor))
        np.testing.assert_allclose(scaled, expected_factor * plain, atol=1e-4)


@given(chains(), st.sampled_from(["group_zscore", "group_mean", "leave_one_out"]))
@properties
def test_trajectory_advantages_of_a_group_sum_to_zero(built: list[Chain], estimator: str) -> None:
    rollouts, episodes = frames(built)
    frame, _ = compute_advantages(rollouts, episodes, algorithm(estimator))
    group = rollouts.set_index("turn_id")["group_id"]
    first = frame[frame["turn_id"].str.endswith("/0")]
    sums = first["advantage"].groupby(first["turn_id"].map(group)).sum()
    np.testing.assert_allclose(sums, 0.0, atol=1e-9)


@given(chains(), methods(), st.sampled_from([0.0, 0.1, 1 / 3]))
@properties
def test_equal_returns_are_worth_exactly_nothing(built: list[Chain], config: AlgorithmConfig, paid: float) -> None:
    single = [Chain(chain.group, [paid], ["s"], [True]) for chain in built for _ in range(2)]
    frame, diagnostics = compute_advantages(*frames(single), config)
    assert (frame["advantage"] == 0.0).all()
    assert diagnostics["frac_zero_std"] == 1.0


@given(chains(faults=False), st.sampled_from(["per_trajectory", "per_row"]))
@properties
def test_leave_one_out_is_the_group_mean_times_n_over_n_minus_one(built: list[Chain], statistics: str) -> None:
    mean = advantages(built, algorithm("group_mean", statistics=statistics))
    loo = advantages(built, algorithm("leave_one_out", statistics=statistics))
    rollouts = frames(built)[0].query("not chains_greedy")
    counted = rollouts if statistics == "per_row" else rollouts[rollouts["step"] == 0]
    n = rollouts["group_id"].map(counted.groupby("group_id").size()).to_numpy()
    np.testing.assert_allclose(loo, mean * n / np.maximum(n - 1, 1), atol=1e-9)


@given(chains(), methods(("gigpo",)))
@properties
def test_gigpo_without_repeated_states_or_step_weight_is_the_group_advantage(
    built: list[Chain], config: AlgorithmConfig
) -> None:
    own = config.advantage
    common = {"statistics": own.statistics, "singleton": own.singleton}
    host = GroupZscore(**common) if own.normalisation == "mean_std" else GroupMean(**common)
    expected = advantages(built, config.model_copy(update={"advantage": host}))
    unique = [
        replace(chain, anchors=[f"{number}/{step}" for step in range(len(chain.rewards))])
        for number, chain in enumerate(built)
    ]
    np.testing.assert_array_equal(advantages(unique, config), expected)
    np.testing.assert_array_equal(advantages(built, _with(config, omega=0.0)), expected)


@given(chains(), methods(("gigpo",)))
@properties
def test_gigpo_anchor_groups_never_span_groups_and_sum_to_zero(built: list[Chain], config: AlgorithmConfig) -> None:
    config = _with(config, normalisation="mean", omega=1.0)
    step_part = advantages(built, config) - advantages(built, _with(config, omega=0.0))
    rollouts, episodes = frames(built)
    trained, _ = compute_advantages(rollouts, episodes, config)
    rows = rollouts.set_index("turn_id").loc[trained["turn_id"]]
    sums = pd.Series(step_part).groupby([rows["group_id"].to_numpy(), rows["anchor_key"].to_numpy()]).sum()
    np.testing.assert_allclose(sums, 0.0, atol=1e-9)
    separate = rollouts.assign(anchor_key=rollouts["group_id"] + "|" + rollouts["anchor_key"])
    other = compute_advantages(separate, episodes, config)[0]["advantage"]
    np.testing.assert_array_equal(other, trained["advantage"])


def _with(config: AlgorithmConfig, **changes: object) -> AlgorithmConfig:
    return config.model_copy(update={"advantage": config.advantage.model_copy(update=changes)})


@pytest.fixture(scope="module")
def hundred_thousand_turns() -> tuple[pd.DataFrame, pd.DataFrame]:
    generator = np.random.default_rng(0)
    built = []
    for number in range(2000):
        anchors = [f"state-{key}" for key in generator.integers(0, 30, 50)]
        built.append(Chain(f"g{number // 8}", [0.0] * 49 + [float(number % 2)], anchors))
    return frames(built)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_hundred_thousand_turns_take_well_under_a_second(
    hundred_thousand_turns: tuple[pd.DataFrame, pd.DataFrame], estimator: str
) -> None:
    start = time.process_time()
    frame, _ = compute_advantages(*hundred_thousand_turns, algorithm(estimator))
    assert len(frame) == 100_000
    assert time.process_time() - start < 2.0, "a coarse bound, in processor time: the machine may be busy"
