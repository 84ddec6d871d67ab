"""One advantage per event: worked numbers, groups, penalties, and what neither order, names nor scale change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from team_frames import Act, Play, act, team_frames, team_method

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig

properties = settings(max_examples=25, deadline=None)
GROUPS = ("event_type", "event_type_and_round", "agent")


def credit(plays: list[Play], config: AlgorithmConfig | None = None) -> tuple[dict[str, float], dict[str, float]]:
    """Advantage by turn, and diagnostics."""
    frame, diagnostics = compute_advantages(*team_frames(plays), config or team_method())
    return dict(zip(frame["turn_id"], frame["advantage"], strict=True)), diagnostics


def teams() -> st.SearchStrategy[list[Play]]:
    events = st.builds(
        act,
        st.sampled_from(["router", "propose", "verify"]),
        st.integers(1, 4),
        st.integers(0, 2),
        st.integers(0, 2),
    )
    return st.lists(
        st.builds(
            Play,
            st.sampled_from([0.0, 0.25, 1.0]),
            st.lists(events, min_size=1, max_size=4),
            st.sampled_from("gh"),
            st.sampled_from(["success", "failure", "env_error"]),
        ),
        min_size=1,
        max_size=6,
    )


def methods() -> st.SearchStrategy[AlgorithmConfig]:
    return st.builds(
        team_method,
        penalty=st.sampled_from([0.0, 0.1]),
        group=st.sampled_from(GROUPS),
        singleton=st.sampled_from(["zero", "raw"]),
    )


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([1, 0, 0, 1], [0.866025, -0.866025, -0.866025, 0.866025]),
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ([1, 1, 1, 1], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_s5_the_advantages_are_those_of_the_worked_numbers(returns: list[float], expected: list[float]) -> None:
    found, diagnostics = credit([Play(paid) for paid in returns])
    for member in ("0.0", "0.1", "1.0"):
        np.testing.assert_allclose([found[f"{play}.{member}"] for play in range(4)], expected, atol=4e-6)
    assert (diagnostics["events"], diagnostics["set_size"]) == (8.0, 1.5)
    assert diagnostics["advantage_std/propose"] == pytest.approx(np.std(expected), abs=1e-5)


def test_the_guard_of_the_division_is_the_published_one() -> None:
    found, _ = credit([Play(paid) for paid in (1, 0, 0, 1)])
    assert found["0.0.0"] == 0.5 / (np.std([1, 0, 0, 1], ddof=1) + 1e-6)


def test_statistics_count_events_and_not_members() -> None:
    plays = [Play(1.0, [act("propose", 5)]), Play(0.0, [act("propose", 1)])]
    found, _ = credit(plays)
    assert {round(value, 5) for value in found.values()} == {0.70711, -0.70711}
    by_agent = credit([Play(1.0, [Act("propose", [True] * 3, agents="aab")]), Play(0.0, [act("propose")])])
    assert by_agent[0]["0.0.0"] == pytest.approx(0.70711, abs=1e-5)


def test_events_of_another_type_or_round_are_not_compared() -> None:
    plays = [Play(paid, [act("propose", 2), act("propose", 2, round=1)][:turns]) for paid, turns in ((1, 2), (0, 1))]
    pooled, _ = credit(plays)
    assert pooled["0.1.0"] == pooled["0.0.1"] == pytest.approx((1 - 2 / 3) / 3**-0.5, abs=1e-5)
    apart, diagnostics = credit(plays, team_method(group="event_type_and_round"))
    assert (apart["0.0.0"], apart["0.1.0"]) == (pytest.approx(0.70711, abs=1e-5), 0.0)
    assert diagnostics["singleton_event_groups"] == 1.0
    assert credit(plays, team_method(group="event_type_and_round", singleton="raw"))[0]["0.1.0"] == pytest.approx(1.0)


def test_an_event_is_charged_for_each_of_its_invalid_members_and_all_members_share_it() -> None:
    plays = [Play(1.0, [act("propose", 3, invalid=2)]), Play(1.0, [act("propose", 3)])]
    found, _ = credit(plays, team_method(penalty=0.1, epsilon=1e-12, scale=10.0))
    assert len({found[f"0.0.{member}"] for member in range(3)}) == 1
    assert found["0.0.0"] == pytest.approx(-(0.5**0.5))
    raw = team_method(penalty=0.1, singleton="raw", scale=10.0)
    assert credit(plays[:1], raw)[0]["0.0.0"] == pytest.approx(9.8, abs=1e-4)


def test_by_agent_every_response_has_its_own_penalty_and_its_own_agents_statistics() -> None:
    plays = [Play(1.0, [act("propose", 2, invalid=1)]), Play(0.0, [act("propose", 2)]), Play(0.0, [act("propose")])]
    found, diagnostics = credit(plays, team_method(penalty=0.1, group="agent"))
    np.testing.assert_allclose([found[f"{play}.0.0"] for play in range(3)], [1.154701, -0.57735, -0.57735], atol=3e-6)
    np.testing.assert_allclose([found["0.0.1"], found["1.0.1"]], [0.707107, -0.707107], atol=3e-6)
    assert {"advantage_std/propose-0", "advantage_std/propose-1"} <= set(diagnostics)


def test_faulty_episodes_enter_no_statistic() -> None:
    healthy = [Play(1.0), Play(0.0)]
    found, diagnostics = credit([*healthy, Play(0.0, ending="env_error")])
    assert found == credit(healthy)[0]
    assert (diagnostics["dropped_episodes"], diagnostics["dropped_events"]) == (1.0, 0.0)


def test_a_file_of_which_every_event_lost_a_member_teaches_nothing_and_is_no_error() -> None:
    rollouts, episodes = team_frames([Play(1.0, [act("propose", 2)]), Play(0.0, [act("propose", 2)])])
    for group in GROUPS:
        left = rollouts[rollouts["member"] == 0]
        frame, diagnostics = compute_advantages(left, episodes, team_method(group=group))
        assert not frame[["advantage", "loss_weight"]].to_numpy().any()
        assert (diagnostics["events"], diagnostics["dropped_events"], diagnostics["set_size"]) == (0.0, 2.0, 0.0)


@given(teams(), methods(), st.randoms(use_true_random=False))
@properties
def test_q2_neither_row_order_nor_names_change_a_bit(plays: list[Play], config: AlgorithmConfig, random: Any) -> None:
    rollouts, episodes = team_frames(plays)
    frame, diagnostics = compute_advantages(rollouts, episodes, config)
    ids = ["turn_id", "parent_id", "task_id", "group_id", "tree_id", "event_id", "policy", "state_key"]
    names = sorted({name for column in ids for name in rollouts[column].dropna()} | set(episodes["tree_id"]))
    new = {name: f"n{random.random()}-{name}" for name in names}
    other = rollouts.assign(**{column: rollouts[column].map(new) for column in ids})
    moved = episodes.assign(tree_id=episodes["tree_id"].map(new), leaf_turn_id=episodes["leaf_turn_id"].map(new))
    order = random.sample(range(len(rollouts)), len(rollouts))
    renamed, found = compute_advantages(other.iloc[order], moved.iloc[::-1], config)
    expected = dict(zip(frame["turn_id"].map(new), frame["advantage"], strict=True))
    assert dict(zip(renamed["turn_id"], renamed["advantage"], strict=True)) == expected
    assert found == pytest.approx(diagnostics)


@given(teams(), methods(), st.sampled_from([0.5, 3.0]))
@properties
def test_q8_shifting_or_scaling_all_rewards_changes_nothing(
    plays: list[Play], config: AlgorithmConfig, number: float
) -> None:
    changes = {"advantage": config.advantage.model_copy(update={"singleton": "zero"})}
    config = config.model_copy(update=changes)
    rollouts, episodes = team_frames(plays)
    expected = compute_advantages(rollouts, episodes, config)[0]["advantage"]
    shifted = episodes.assign(**{"return": episodes["return"] + number})
    found = compute_advantages(rollouts, shifted, config)[0]["advantage"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    reward = config.reward.model_copy(
        update={"scale": number, "invalid_action_penalty": number * config.reward.invalid_action_penalty}
    )
    scaled = compute_advantages(rollouts, episodes, config.model_copy(update={"reward": reward}))[0]["advantage"]
    np.testing.assert_allclose(scaled, expected, atol=1e-3)


@given(teams(), methods())
@properties
def test_q4_the_members_of_an_event_share_one_advantage_and_groups_sum_to_zero(
    plays: list[Play], config: AlgorithmConfig
) -> None:
    config = config.model_copy(update={"advantage": config.advantage.model_copy(update={"singleton": "zero"})})
    rollouts, episodes = team_frames(plays)
    frame, _ = compute_advantages(rollouts, episodes, config)
    rows = rollouts.set_index("turn_id").loc[frame["turn_id"]].reset_index()
    rows["advantage"] = frame["advantage"]
    by_agent = config.advantage.group == "agent"
    if not by_agent:
        assert (rows.groupby("event_id")["advantage"].nunique() == 1).all()
        rows = rows.drop_duplicates("event_id")
    rounds = ["team_round"] if config.advantage.group == "event_type_and_round" else []
    kind = ["team_agent"] if by_agent else ["event_type", *rounds]
    np.testing.assert_allclose(rows.groupby(["group_id", *kind])["advantage"].sum(), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("group_zscore", [1.154701, -0.57735, -0.57735]),
        ("group_mean", [2 / 3, -1 / 3, -1 / 3]),
        ("leave_one_out", [1.0, -0.5, -0.5]),
        ("gpg", [2 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_member_wise_methods_give_every_member_the_advantage_of_its_episode(
    estimator: str, expected: list[float]
) -> None:
    acts = [[act("propose", 4), act("aggregate")], [act("propose", 2)], [act("verify")]]
    plays = [Play(paid, made) for paid, made in zip((1.0, 0.0, 0.0), acts, strict=True)]
    found, _ = credit(plays, team_method(estimator))
    for play, value in enumerate(expected):
        own = [advantage for turn, advantage in found.items() if turn.startswith(f"{play}.")]
        np.testing.assert_allclose(own, value, atol=3e-6)


def test_member_wise_penalties_are_their_own_rows() -> None:
    plays = [Play(1.0, [act("propose", 2, invalid=1)]), Play(0.0, [act("propose", 2)])]
    found, _ = credit(plays, team_method("group_mean", penalty=0.1))
    np.testing.assert_allclose(list(found.values()), [0.5, 0.4, -0.5, -0.5])
