"""Complete events, those that lost a member, and episodes that go on behind such an event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from team_frames import Play, act, team_frames, team_method

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.events import events_of
from agentbench_rl.algorithms.frames import complete_rollouts
from agentbench_rl.types import AgentRLError

ACTS = [act("propose", 3), act("revise", 3, round=1), act("aggregate", 1)]
PLAYS = [Play(paid, ACTS) for paid in (1.0, 0.0, 0.5)]


def complete(rollouts: pd.DataFrame) -> dict[str, bool]:
    """Whether each event is complete, by id."""
    frame = complete_rollouts(rollouts)
    found = events_of(frame)
    return dict(zip(frame["event_id"].iloc[found.lead], found.complete.tolist(), strict=True))


def by_turn(rollouts: pd.DataFrame, episodes: pd.DataFrame, **settings: Any) -> tuple[pd.DataFrame, dict[str, float]]:
    frame, diagnostics = compute_advantages(rollouts, episodes, team_method(**settings))
    return frame.set_index("turn_id"), diagnostics


def test_s15_the_events_of_a_trace_have_the_sizes_of_the_worked_example() -> None:
    trace = [act("router"), act("search", 2), act("verify"), act("search"), act("verify"), act("answer")]
    rollouts, _ = team_frames([Play(1.0, trace)])
    found = events_of(complete_rollouts(rollouts))
    assert found.size.tolist() == [1, 2, 1, 1, 1, 1]
    assert (len(rollouts), found.complete.all()) == (7, True)
    one_after_another, _ = team_frames([Play(1.0, [trace[0], act("search"), act("search"), *trace[2:]])])
    assert events_of(complete_rollouts(one_after_another)).size.tolist() == [1] * 7


@pytest.mark.parametrize(
    "change",
    [
        {"member": 1},
        {"member": 3},
        {"event_size": 2},
        {"event_type": "verify"},
        {"state_key": "another"},
        {"step": 1},
        {"tree_id": "1"},
    ],
)
def test_members_that_do_not_agree_are_no_event(change: dict[str, object]) -> None:
    rollouts, _ = team_frames(PLAYS)
    rollouts.loc[2, list(change)] = list(change.values())
    found = complete(rollouts)
    assert not found.pop("0.0")
    assert all(found.values())


@pytest.mark.parametrize("member", [0, 1, 2])
def test_q3_an_event_that_lost_a_member_is_dropped_and_never_becomes_a_smaller_set(member: int) -> None:
    rollouts, episodes = team_frames(PLAYS)
    lost = rollouts[rollouts["turn_id"] != f"0.0.{member}"]
    frame, diagnostics = by_turn(lost, episodes)
    assert (diagnostics["events"], diagnostics["dropped_events"]) == (8.0, 1.0)
    gone = frame["event_id"] == "0.0"
    assert gone.sum() == 2
    assert not frame.loc[gone, ["advantage", "loss_weight"]].to_numpy().any()
    # What is left is worth what it would be had the whole event never been compared.
    expected = by_turn(*team_frames(PLAYS))[0]
    rest = frame[~gone & ~frame["event_id"].str.endswith(".0")]
    pd.testing.assert_frame_equal(rest, expected.loc[rest.index])
    proposals = frame.loc[["1.0.0", "2.0.0"], "advantage"]
    np.testing.assert_allclose(proposals, [-(0.5**0.5), 0.5**0.5], atol=1e-5)


@pytest.mark.parametrize("step", [0, 1])
def test_an_episode_goes_on_behind_an_event_without_its_first_member(step: int) -> None:
    rollouts, episodes = team_frames(PLAYS)
    lost = rollouts[rollouts["turn_id"] != f"2.{step}.0"]
    for method in ("group_zscore", "leave_one_out"):
        frame, _ = by_turn(lost, episodes, estimator=method)
        pd.testing.assert_frame_equal(frame, by_turn(rollouts, episodes, estimator=method)[0].loc[frame.index])


def test_an_episode_may_end_in_an_event_without_its_first_member() -> None:
    plays = [Play(paid, [act("propose", 2), act("revise", 2)]) for paid in (1.0, 0.0)]
    rollouts, episodes = team_frames(plays)
    lost = rollouts[rollouts["turn_id"] != "0.1.0"]
    frame, diagnostics = by_turn(lost, episodes)
    assert (len(frame), diagnostics["episodes"], diagnostics["dropped_events"]) == (7, 2.0, 1.0)
    assert frame.loc["0.0.0", "advantage"] > 0
    pd.testing.assert_frame_equal(by_turn(lost, episodes.drop(columns="return"))[0], frame)
    with pytest.raises(AgentRLError, match=r"leaf_turn_id '0\.1\.0' is no turn_id"):
        by_turn(lost, episodes.drop(columns="tree_id"))


def test_an_event_that_is_gone_altogether_is_a_broken_file() -> None:
    rollouts, episodes = team_frames(PLAYS)
    with pytest.raises(AgentRLError, match=r"parent_id '0\.1\.0' is no turn_id"):
        by_turn(rollouts[rollouts["event_id"] != "0.1"], episodes)


def test_two_versions_of_one_policy_in_an_event_are_refused_by_its_name() -> None:
    rollouts, episodes = team_frames(PLAYS)
    rollouts.loc[4, "policy_version"] = 4
    with pytest.raises(AgentRLError, match=r"two versions of one policy acted in event '0\.1'"):
        by_turn(rollouts, episodes)
    several = rollouts.assign(policy=rollouts["member"].map("policy-{}".format))
    assert by_turn(several, episodes)[1]["dropped_events"] == 0.0


def test_a_file_without_sizes_is_refused_where_responses_share_an_event() -> None:
    rollouts, episodes = team_frames(PLAYS)
    with pytest.raises(AgentRLError, match="tell its planned size in event_size"):
        by_turn(rollouts.drop(columns="event_size"), episodes)


def test_foreign_files_of_single_agents_have_an_event_per_response() -> None:
    rollouts, episodes = team_frames([Play(paid, [act("act"), act("act")]) for paid in (1.0, 0.0, 0.0)])
    columns = ["event_id", "event_type", "event_size", "member", "policy", "policy_version", "state_key"]
    expected = by_turn(rollouts, episodes)
    frame, diagnostics = by_turn(rollouts.drop(columns=columns), episodes)
    pd.testing.assert_frame_equal(frame.drop(columns="event_id"), expected[0].drop(columns="event_id"))
    assert diagnostics == expected[1]


@pytest.mark.parametrize(("group", "column"), [("agent", "team_agent"), ("event_type_and_round", "team_round")])
def test_a_file_without_what_a_group_is_made_of_is_refused(group: str, column: str) -> None:
    rollouts, episodes = team_frames(PLAYS)
    with pytest.raises(AgentRLError, match=f"column {column}"):
        by_turn(rollouts.drop(columns=column), episodes, group=group)
