"""Foreign files, rollout graphs, faults, missing capabilities and the shipped presets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames

from agentbench_rl.algorithms.advantages import ESTIMATORS, compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.presets import load_preset
from agentbench_rl.types import AgentRLError

CHAINS = [
    Chain("g", [0.0, 0.0, 1.0], ["a", "b", "a"], [True, False, True]),
    Chain("g", [0.0, 0.0], ["a", "b"], [True, True]),
    Chain("h", [0.5], ["a"], [True]),
    Chain("h", [0.0, 0.25], ["a", "c"], [True, True]),
]
ALL = pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - {"gae", "reinforcepp", "state_score"}))


@ALL
def test_optional_columns_may_be_absent_or_null(estimator: str) -> None:
    rollouts, episodes = frames([Chain(c.group, c.rewards, c.anchors) for c in CHAINS])
    expected = compute_advantages(rollouts, episodes, algorithm(estimator))[0]
    optional = ["parent_id", "branch", "valid"]
    absent = (
        rollouts.drop(columns=optional).rename(columns={"anchor_key": "was"}).assign(state_key=rollouts["anchor_key"])
    )
    null = rollouts.assign(**dict.fromkeys([*optional, "event_id", "member"]), state_key=rollouts["anchor_key"])
    null["anchor_key"] = None
    for foreign in (absent, null):
        leaner = episodes[["episode_id", "leaf_turn_id", "ending"]]
        found = compute_advantages(foreign, leaner, algorithm(estimator))[0]
        pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize("column", ["turn_id", "task_id", "group_id", "tree_id", "step"])
def test_a_missing_required_column_is_named(column: str) -> None:
    rollouts, episodes = frames(CHAINS)
    with pytest.raises(AgentRLError, match=column):
        compute_advantages(rollouts.drop(columns=column), episodes, algorithm("group_mean"))


@pytest.mark.parametrize("column", ["episode_id", "leaf_turn_id", "ending"])
def test_a_missing_required_column_of_the_episodes_is_named(column: str) -> None:
    rollouts, episodes = frames(CHAINS)
    with pytest.raises(AgentRLError, match=column):
        compute_advantages(rollouts, episodes.drop(columns=column), algorithm("group_mean"))


def test_numeric_casts_must_be_lossless() -> None:
    rollouts, episodes = frames(CHAINS)
    expected = compute_advantages(rollouts, episodes, algorithm("gigpo"))[0]
    as_floats = rollouts.assign(step=rollouts["step"].astype("float32"), reward=rollouts["reward"].astype("float32"))
    pd.testing.assert_frame_equal(compute_advantages(as_floats, episodes, algorithm("gigpo"))[0], expected)
    with pytest.raises(AgentRLError, match="step"):
        compute_advantages(rollouts.assign(step=rollouts["step"] + 0.5), episodes, algorithm("gigpo"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parent_id": "nowhere"}, "nowhere"),
        ({"parent_id": "0/2"}, "cycle"),
        ({"anchor_key": None}, "anchor keys"),
        ({"reward": None}, "reward of turn"),
    ],
)
def test_a_broken_file_is_explained(change: dict[str, object], message: str) -> None:
    rollouts, episodes = frames(CHAINS)
    rollouts = rollouts.drop(columns="state_key")
    for column, value in change.items():
        rollouts.loc[0, column] = value
    with pytest.raises(AgentRLError, match=message):
        compute_advantages(rollouts, episodes, algorithm("gigpo"))


def test_an_unknown_leaf_or_ending_is_explained() -> None:
    rollouts, episodes = frames(CHAINS)
    with pytest.raises(AgentRLError, match="leaf_turn_id 'gone'"):
        compute_advantages(rollouts, episodes.replace({"0/2": "gone"}), algorithm("group_mean"))
    with pytest.raises(AgentRLError, match="unknown ending 'won'"):
        compute_advantages(rollouts, episodes.replace({"success": "won"}), algorithm("group_mean"))


def test_an_episode_stands_once_and_lies_in_one_group() -> None:
    rollouts, episodes = frames(CHAINS)
    with pytest.raises(AgentRLError, match="leaf_turn_id '0/2' stands in more than one row"):
        compute_advantages(rollouts, episodes.assign(leaf_turn_id="0/2"), algorithm("group_mean"))
    two = [Chain("g", [0.0, 1.0]), Chain("h", [0.0])]
    rollouts, episodes = frames(two)
    rollouts.loc[1, "group_id"] = "h"
    with pytest.raises(AgentRLError, match="the rows of one episode, '0', lie in different groups"):
        compute_advantages(rollouts, episodes, algorithm("group_mean"))


@pytest.mark.parametrize("count", [None, -1])
def test_a_response_of_unknown_length_is_refused(count: int | None) -> None:
    rollouts, episodes = frames([Chain("g", [1.0]), Chain("g", [0.0])])
    lengths = pd.Series([2, count], dtype="Int64")
    with pytest.raises(AgentRLError, match="response_tokens holds a null or a negative number"):
        compute_advantages(rollouts.assign(response_tokens=lengths), episodes, algorithm("opo"))


@ALL
def test_only_faults_leave_an_empty_file_with_the_right_columns(estimator: str) -> None:
    rollouts, episodes = frames([Chain("g", [0.0, 0.0], ["a", "b"], ending="timeout")])
    frame, diagnostics = compute_advantages(rollouts, episodes, algorithm(estimator))
    assert len(frame) == 0
    assert list(frame.columns) == ["turn_id", "event_id", "loss_weight", "advantage"]
    assert diagnostics == {"episodes": 0.0, "dropped_episodes": 1.0, "dropped_rows": 2.0}


@ALL
def test_an_empty_file_gives_an_empty_file(estimator: str) -> None:
    rollouts, episodes = (frame.iloc[:0] for frame in frames(CHAINS))
    frame, diagnostics = compute_advantages(rollouts, episodes, algorithm(estimator))
    assert len(frame) == 0
    assert diagnostics["episodes"] == 0.0


def test_an_error_is_not_a_reward_of_zero_and_a_lone_survivor_is_counted() -> None:
    built = [Chain("g", [1.0], ["a"]), Chain("g", [0.0], ["a"], ending="env_error")]
    frame, diagnostics = compute_advantages(*frames(built), algorithm("group_zscore"))
    assert frame["advantage"].tolist() == [0.0]
    assert diagnostics["singleton_groups"] == 1.0
    assert diagnostics["return_mean"] == 1.0


def forked() -> tuple[pd.DataFrame, pd.DataFrame]:
    """One tree: a shared first turn, then three continuations, the last of which met a fault."""
    rollouts, _ = frames([Chain("g", [0.0, 1.0], ["s", "t"]), Chain("g", [0.0]), Chain("g", [0.5])])
    rollouts.loc[2:, ["parent_id", "tree_id", "step"]] = ["0/0", "0", 1]
    rollouts["branch"] = [0, 0, 1, 2]
    endings = {"ending": ["success", "failure", "env_error"], "return": [1.0, 0.0, None]}
    return rollouts, pd.DataFrame({"episode_id": list("xyz"), "leaf_turn_id": ["0/1", "1/0", "2/0"], **endings})


def test_a_shared_prefix_gets_the_mean_of_its_episodes_and_their_weight() -> None:
    frame, diagnostics = compute_advantages(*forked(), algorithm("group_mean"))
    assert frame["turn_id"].tolist() == ["0/0", "0/1", "1/0"]
    np.testing.assert_allclose(frame["advantage"], [0.0, 0.5, -0.5])
    assert frame["loss_weight"].tolist() == [2.0, 1.0, 1.0]
    assert diagnostics["dropped_rows"] == 1.0


def test_trees_without_parents_are_refused() -> None:
    rollouts, episodes = forked()
    with pytest.raises(AgentRLError, match="parent_id"):
        compute_advantages(rollouts.drop(columns="parent_id"), episodes, algorithm("group_mean"))


def test_the_members_of_an_event_share_its_place_on_the_path() -> None:
    rollouts, _ = frames([Chain("g", [0.0, 1.0]), Chain("g", [0.0, 9.0]), Chain("g", [0.0])])
    rollouts = rollouts.assign(event_id=["e", "f", "e", "f", "single"], member=[0, 0, 1, 1, 0])
    rollouts.loc[3, "parent_id"] = "0/0"
    leaves = {"leaf_turn_id": ["0/1", "2/0"], "ending": ["success", "failure"]}
    episodes = pd.DataFrame({"episode_id": ["x", "y"], **leaves})
    frame, _ = compute_advantages(rollouts, episodes, algorithm("group_mean"))
    np.testing.assert_allclose(frame["advantage"], [0.5, 0.5, 0.5, 0.5, -0.5])
    assert frame["event_id"].tolist() == ["e", "f", "e", "f", "single"]


def test_similarity_compares_observations_where_the_anchor_is_a_hash() -> None:
    rollouts, episodes = frames([Chain("g", [0.0, 1.0], ["r", "h1"]), Chain("g", [0.0, 0.0], ["r", "h2"])])
    rollouts["observation"] = ["a mug is on desk 1", "done", "a mug is on desk 2", "done"]
    settings = {"normalisation": "mean", "anchor": "similarity", "similarity": 0.9}
    found = compute_advantages(rollouts, episodes, algorithm("gigpo", **settings))[0]["advantage"]
    np.testing.assert_allclose(found, [0.5 + 0.475, 0.5 + 0.5, -0.5 - 0.475, -0.5 - 0.5])


@pytest.mark.parametrize(
    ("name", "estimator", "aggregation", "kl"),
    [
        ("grpo", "group_zscore", "token_mean", 0.01),
        ("drgrpo", "group_mean", "sequence_mean_token_sum_norm", 0.0),
        ("rloo", "leave_one_out", "token_mean", 0.01),
        ("gigpo", "gigpo", "token_mean", 0.01),
    ],
)
def test_presets_are_the_published_methods(name: str, estimator: str, aggregation: str, kl: float) -> None:
    preset = AlgorithmConfig.model_validate(load_preset("algorithms", name))
    assert preset.advantage.estimator == estimator
    assert preset.loss.aggregation == aggregation
    assert preset.loss.kl_coefficient == kl
    assert preset.topology.group_size == 8
    assert preset.advantage.statistics == "per_trajectory"
