"""The engine of teams: rows, seeds and sessions, endings, cost, faults, and workflows that name what they must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeEnvironment, World, specs
from hypothesis import given, settings
from hypothesis import strategies as st
from team_world import Plan, ledger, play_plan, play_team, say_once

from agentbench_rl.config.environment import AlfworldEnvironment
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.rollout.episode import request_seed
from agentbench_rl.types import AGENT, TEAM_ROUND, AgentRLError, rollout_schema, topology_columns

TEAM = [["a1", "a2"], ["q1", "q2"], ["last"]]


def words(*moves: str) -> Any:
    """Says these as the members that act, in their order, and once something else as all others."""
    said = {f"{event}.{member}": move for move, (event, member) in zip(moves, [(1, 0), (1, 1), (2, 0)], strict=False)}
    return lambda event, member, prompt: said.get(f"{event}.{member}", say_once(event, member, prompt))


def test_rows_hold_the_columns_of_the_contract_and_of_the_team() -> None:
    rollouts, sampler = play_plan(words("+6", "+7", "win"), TEAM)
    first, second, *searches, last = rollouts.turns
    names = {*rollout_schema().names, AGENT, TEAM_ROUND}
    assert all(set(row) == names for row in rollouts.turns)
    assert {AGENT, TEAM_ROUND} <= set(topology_columns())
    assert [row["turn_id"] for row in rollouts.turns[:3]] == [f"s0.i0.a.t0.b0.{end}" for end in ("0.0", "0.1", "1.0")]
    assert first["event_id"] == second["event_id"] == "s0.i0.a.t0.b0.0"
    assert first["event_type"] == "a"
    assert [row["parent_id"] for row in rollouts.turns] == [None] * 2 + [first["turn_id"]] * 2 + [
        searches[0]["turn_id"]
    ]
    assert [row["step"] for row in rollouts.turns] == [row[TEAM_ROUND] for row in rollouts.turns] == [0, 0, 1, 1, 2]
    assert [row[AGENT] for row in rollouts.turns] == ["a1", "a2", "q1", "q2", "last"]
    assert first["anchor_key"] != second["anchor_key"]
    assert not any(row["extends_parent"] for row in rollouts.turns)
    assert {(row["policy"], row["policy_version"], row["branch"]) for row in rollouts.turns} == {("policy", 4, 0)}
    whole = {request.session: request.prompt_ids for batch in sampler.batches for request in batch}
    assert all(row["prompt_ids"] == whole[row["turn_id"]] for row in rollouts.turns)
    assert [row["observation"] for row in rollouts.turns] == ["", "", "a: 1", "a: 2", "a: 3"]
    assert [row["done"] for row in rollouts.turns] == [False] * 4 + [True]
    assert last["ending"] == "success"
    assert last["reward"] == 1.0


def test_the_reward_and_the_progress_of_an_event_stand_on_all_its_members() -> None:
    rollouts, _ = play_plan(words("+6", "+8", "win"), TEAM)
    assert [row["process_reward"] for row in rollouts.turns] == pytest.approx([0.0, 0.0, 0.3, 0.3, 0.0])
    assert [row["reward"] for row in rollouts.turns] == [0.0] * 4 + [1.0]
    (episode,) = rollouts.episodes
    assert (episode["return"], episode["score"], episode["success"], episode["length"]) == (1.0, 1.0, True, 3)
    won_early, _ = play_plan(words("win", "never said to the environment"), TEAM)
    assert ledger(won_early) == [2, 2]
    assert [row["reward"] for row in won_early.turns] == [0.0, 0.0, 1.0, 1.0]
    assert [row["tool_calls"] for row in won_early.turns] == [0, 0, 1, 0]
    assert (won_early.episodes[0]["return"], won_early.cost["environment_steps"]) == (1.0, 1)


def test_progress_that_is_not_known_is_null_on_all_members() -> None:
    rollouts, _ = play_plan(words("+6", "+none", "win"), TEAM)
    assert [row["process_reward"] for row in rollouts.turns][2:] == [None] * 3


def test_seeds_and_sessions_are_those_of_the_members_and_every_session_is_released() -> None:
    rollouts, sampler = play_plan(say_once, TEAM, "a", "b")
    requests = [request for batch in sampler.batches for request in batch]
    assert {request.session for request in requests} == {row["turn_id"] for row in rollouts.turns}
    for request in requests:
        event, _, member = request.session.rpartition(".")
        assert request.seed == request_seed(event, int(member))
        assert request.policy == "policy"
    assert len({request.seed for request in requests}) == len(requests)
    assert not sampler.held


def test_every_role_asks_its_own_policy() -> None:
    team = TeamConfig(workflow="propose_act", policies="per_role", instructions={"one": "Sing."})
    rollouts, sampler = play_plan(say_once, TEAM, team=team)
    assert {request.policy for batch in sampler.batches for request in batch} == {"one"}
    assert {row["policy"] for row in rollouts.turns} == {"one"}
    assert all("Sing." in prompt and "Speak." not in prompt for prompt in sampler.prompts.values())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(3, 20), st.integers(1, 5))
def test_rows_do_not_depend_on_the_slots_and_a_batch_never_holds_more(sizes: list[int], slots: int, tasks: int) -> None:
    sets = [[f"m{member}" for member in range(size)] for size in sizes]
    names = "abcde"[:tasks]
    one, _ = play_plan(say_once, sets, *names, slots=max(sizes))
    many, sampler = play_plan(say_once, sets, *names, slots=slots)
    assert (one.turns, one.episodes) == (many.turns, many.episodes)
    assert max(map(len, sampler.batches)) <= slots
    assert many.model_calls == len(many.turns) == sum(tick["requests"] for tick in many.timings)
    assert [row["task_id"] for row in many.episodes] == list(names)


def test_slots_without_room_for_one_event_are_refused() -> None:
    with pytest.raises(AgentRLError, match=r"rollout\.batch_slots is 2, and an event of this team has up to 3"):
        play_plan(say_once, [["a", "b", "c"]], slots=2)


def test_endings_of_a_team() -> None:
    assert play_plan(words("+6", "+6", "lose"), TEAM)[0].endings == {"failure": 1}
    nobody, _ = play_plan(say_once, TEAM)
    assert nobody.endings == {"failure": 1}
    assert nobody.episodes[0]["score"] == 0.0
    assert all(row["ending"] == "failure" for row in nobody.turns if row["done"])
    limited, _ = play_plan(say_once, TEAM, limits={"max_turns": 2})
    assert limited.endings == {"truncated_turns": 1}
    assert ledger(limited) == [2, 2]
    assert [row["done"] for row in limited.turns] == [False, False, True, True]
    passed, _ = play_plan(say_once, TEAM, limits={"max_turns": 1})
    assert (ledger(passed), passed.cost["environment_steps"]) == ([2, 2], 2)  # a set is executed whole
    assert passed.endings == {"truncated_turns": 1}
    long, _ = play_plan(lambda event, member, prompt: "x" * 40, TEAM, max_context_tokens=100)
    assert long.endings == {"truncated_tokens": 1}
    assert ledger(long) == [2]
    with pytest.raises(AgentRLError, match=r"task a: its first prompt has .*rollout\.max_context_tokens"):
        play_plan(say_once, TEAM, max_context_tokens=30)


def test_events_with_a_malformed_member_in_a_row_end_the_episode() -> None:
    sets = [["a", "b"]] * 6
    rollouts, _ = play_plan(lambda event, member, prompt: "x…" if member == event % 2 else "x", sets)
    assert rollouts.endings == {"parse_error": 1}
    assert ledger(rollouts) == [2, 2, 2]
    rollouts, _ = play_plan(lambda event, member, prompt: "x…" if event in (0, 1, 3, 4) else "x", sets)
    assert rollouts.endings == {"failure": 1}


@pytest.mark.parametrize("place", ["reset a", "step a 1", "state_key a 2"])
def test_a_fault_is_played_again_from_the_start_and_what_it_cost_is_counted(place: str) -> None:
    clean, _ = play_plan(words("+6", "+7", "win"), TEAM, "a", "b")
    world = World(faults={place: 1})
    again, sampler = play_plan(words("+6", "+7", "win"), TEAM, "a", "b", world=world, retries=1)
    assert (again.turns, again.episodes, again.retried) == (clean.turns, clean.episodes, 1)
    assert again.cost["environment_steps"] == 6 + {"reset a": 0, "step a 1": 2, "state_key a 2": 2}[place]
    assert world.opened == world.closed == 3
    assert not sampler.held
    lost, _ = play_plan(words("+6", "+7", "win"), TEAM, world=World(faults={place: 1}))
    (episode,) = lost.episodes
    assert (episode["ending"], episode["return"], episode["success"]) == ("env_error", None, None)
    assert episode["leaf_turn_id"] == ("s0.i0.a.t0.b0" if place == "reset a" else "s0.i0.a.t0.b0.1.0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sets": [[]]}, "names an empty set"),
        ({"sets": [["a", "b"]], "largest": 1}, "2 members of one a event, and its largest_set is 1"),
        ({"sets": [["a"]], "instructions": {"two": ""}}, "no instructions for the role 'one'"),
    ],
)
def test_a_workflow_that_names_what_it_must_not_is_refused(change: dict[str, Any], message: str) -> None:
    class Wrong(Plan):
        @property
        def largest_set(self) -> int:
            return int(change.get("largest", 2))

    plan = Wrong(change["sets"])
    plan = replace(plan, instructions=change.get("instructions", plan.instructions))
    config = AlfworldEnvironment(name="alfworld")
    with pytest.raises(AgentRLError, match=message):
        play_team(say_once, plan, lambda: FakeEnvironment(World()), config, specs("a"))
