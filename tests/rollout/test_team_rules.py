"""Which outputs form an event: rules R1 to R8, example S15 and property Q10 of SRPO (arXiv 2609.08452), section 3.1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes import World
from hypothesis import given, settings
from hypothesis import strategies as st
from team_world import ledger, play_plan, play_workflow, say_once

from agentbench_rl.config.environment import (
    AlfworldEnvironment,
    EnvironmentConfig,
    GeneratorConfig,
    MathEnvironment,
    SearchEnvironment,
    SearchGenerator,
)
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.types import AGENT, TEAM_ROUND

MATH = MathEnvironment(name="math", max_invalid_turns=50)
SEARCH = SearchEnvironment(
    name="search", max_turns=50, max_invalid_turns=50, generator=SearchGenerator(entities=20, hops=(1,))
)
HOUSE = AlfworldEnvironment(
    name="alfworld",
    max_turns=4,
    max_invalid_turns=50,
    generator=GeneratorConfig(receptacles=(5, 5), objects=(4, 4), floor_plans=1),
)
ENVIRONMENTS: dict[str, EnvironmentConfig] = {"mathematics": MATH, "search": SEARCH, "propose_act": HOUSE}
SAYINGS = (
    *(r"\boxed{3}", r"FINAL: \boxed{3}", "<verify>approve</verify>", "<verify>reject</verify>", "<verify>no</verify>"),
    *("<route>1,3</route>", "<route>2</route>", "<route>STOP</route>", "<route>1,1</route>", "<route>4</route>"),
    *("<think>private</think><search>Ann</search>", "<think></think><answer>Ann</answer>", "look", "go…"),
)


def teams() -> st.SearchStrategy[TeamConfig]:
    return st.builds(
        TeamConfig,
        workflow=st.sampled_from(sorted(ENVIRONMENTS)),
        orchestration=st.sampled_from(["fixed", "mixed", "routed"]),
        members=st.just(3),
        rounds=st.integers(2, 3),
    )


def scripted(seed: int) -> Callable[[int, int, str], str]:
    return lambda event, member, prompt: SAYINGS[hash((seed, event, member)) % len(SAYINGS)]


@settings(max_examples=30, deadline=None)
@given(teams(), st.integers(0, 999))
def test_r4_r5_r8_any_words_make_complete_events_of_one_frozen_state(team: TeamConfig, seed: int) -> None:
    """All shipped workflows, whatever is said: also what follows from malformed decisions."""
    rollouts, sampler = play_workflow(scripted(seed), team, ENVIRONMENTS[team.workflow])
    sizes = ledger(rollouts)
    assert sum(sizes) == len(rollouts.turns) == rollouts.model_calls
    ticks = [len({request.session.rpartition(".")[0] for request in batch}) for batch in sampler.batches]
    assert ticks == [1] * len(sizes)
    for row in rollouts.turns:
        single = row["event_type"] in ("router", "verify", "revise", "aggregate", "answer", "act")
        assert (row["event_size"] == 1) or not single
        assert row["event_size"] in (1, 2, 3)
        assert row[TEAM_ROUND] in range(team.rounds + 1)
    assert not sampler.held
    assert rollouts.cost["environment_steps"] <= ENVIRONMENTS[team.workflow].max_turns
    assert len(rollouts.episodes) == 1
    assert rollouts.turns[-1]["done"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_r4_no_member_sees_another_of_its_event_and_everyone_sees_all_events_before(sizes: list[int]) -> None:
    sets = [[f"m{member}" for member in range(size)] for size in sizes]
    rollouts, sampler = play_plan(say_once, sets)
    assert ledger(rollouts) == sizes
    for session, prompt in sampler.prompts.items():
        event = int(session.split(".")[-2])
        seen = {said for said in sampler.texts.values() if said in prompt}
        assert seen == {say_once(e, m, "") for e in range(event) for m in range(sizes[e])}


def test_r1_a_committed_proposal_is_a_transition_though_the_environment_did_not_move() -> None:
    rollouts, _sampler = play_plan(say_once, [["a", "b"], ["c"]])
    proposals, last = rollouts.turns[:2], rollouts.turns[2]
    assert all(row["state_key"] != row["next_state_key"] for row in proposals)
    assert last["state_key"] == proposals[0]["next_state_key"]
    assert last["parent_id"] == proposals[0]["turn_id"]
    assert rollouts.cost["environment_steps"] == 1
    assert all(row["observation"] == "" and row["reward"] == 0.0 for row in proposals)


def test_r2_a_private_draft_is_no_member_and_nobody_reads_it() -> None:
    def script(event: int, member: int, prompt: str) -> str:
        tag = "search" if event == 0 else "answer"
        return f"<think>draft{member}</think><{tag}>Ann</{tag}>"

    rollouts, sampler = play_workflow(script, TeamConfig(workflow="search", members=2, rounds=1), SEARCH)
    assert ledger(rollouts) == [2, 1]
    assert not any("draft" in prompt for prompt in sampler.prompts.values())
    assert not any("draft" in row["action"] for row in rollouts.turns)


def test_r3_what_the_workflow_keeps_to_itself_forms_no_event() -> None:
    """S15: with private verifiers only the searches and the answer are events."""
    rollouts, _ = play_plan(say_once, [["answer"]])
    assert ledger(rollouts) == [1]
    assert ledger(play_plan(say_once, [["r"], ["q1", "q2"], ["q3"], ["answer"]])[0]) == [1, 2, 1, 1]


def test_r5_retrieved_documents_are_never_members() -> None:
    def script(event: int, member: int, prompt: str) -> str:
        return "<think></think><search>drink</search>" if event == 0 else "<think></think><answer>x</answer>"

    rollouts, sampler = play_workflow(script, TeamConfig(workflow="search", members=2, rounds=1), SEARCH)
    assert ledger(rollouts) == [2, 1]
    searches = rollouts.turns[:2]
    assert all(row["observation"].startswith("<information>") and row["tool_calls"] == 1 for row in searches)
    assert rollouts.cost["tool_calls"] == 2
    assert rollouts.cost["environment_steps"] == 3
    answerer = sampler.prompts[rollouts.turns[2]["turn_id"]]
    assert answerer.count("(Title: ") == len(searches[0]["observation"].splitlines()) == SEARCH.top_k
    assert searches[0]["observation"] == searches[1]["observation"]


def test_r6_a_selected_output_stays_a_member_though_the_aggregator_does_not_quote_it() -> None:
    texts = {0: (r"\boxed{1}", r"\boxed{2}"), 1: (r"FINAL: \boxed{2}",)}
    team = TeamConfig(workflow="mathematics", members=2, rounds=1)
    rollouts, _ = play_workflow(lambda event, member, prompt: texts[event][member], team, MATH)
    assert [row["action"] for row in rollouts.turns] == [r"\boxed{1}", r"\boxed{2}", "2"]
    assert ledger(rollouts) == [2, 1]


def test_r8_routers_and_aggregators_decide_alone_whatever_weights_they_have() -> None:
    team = TeamConfig(workflow="mathematics", orchestration="routed", members=3, rounds=2, policies="per_role")
    said = {0: "<route>1,3</route>", 2: "<route>STOP</route>", 3: r"FINAL: \boxed{1}"}
    for policies in ("per_role", "shared"):
        each = team.model_copy(update={"policies": policies})
        rollouts, _ = play_workflow(lambda event, *_: said.get(event, r"\boxed{1}"), each, MATH)
        events = [(row["event_type"], row["event_size"]) for row in rollouts.turns if row["member"] == 0]
        assert events == [("router", 1), ("propose", 2), ("router", 1), ("aggregate", 1)]
        assert len({row["policy"] for row in rollouts.turns}) == (3 if policies == "per_role" else 1)


def test_r7_a_member_without_an_answer_of_the_environment_does_not_make_the_event_smaller() -> None:
    world = World(faults={"step a 1": 1})
    rollouts, _ = play_plan(say_once, [["r"], ["q1", "q2", "q3"], ["answer"]], world=world)
    assert ledger(rollouts) == [1, 3]
    event = rollouts.turns[1:]
    assert [row["reward"] for row in event] == [None] * 3 == [row["process_reward"] for row in event]
    assert [row["observation"] for row in event] == ["a: 1", "", ""]
    assert all(row["done"] and row["ending"] == "env_error" for row in event)
    assert rollouts.cost["environment_steps"] == 2


def test_r7_a_malformed_member_does_not_make_the_event_smaller() -> None:
    rollouts, sampler = play_plan(
        lambda event, member, prompt: f"said{event}{member}" + ("…" if member == 1 else ""), [["a", "b", "c"], ["d"]]
    )
    assert ledger(rollouts) == [3, 1]
    assert [row["valid"] for row in rollouts.turns] == [True, False, True, True]
    assert "said01" not in sampler.prompts[rollouts.turns[3]["turn_id"]]


def test_s15_the_routed_search_team_has_the_ledger_of_the_example() -> None:
    said = {0: "<route>1,2</route>", 2: "<route>3</route>", 4: "<route>STOP</route>"}

    def script(event: int, member: int, prompt: str) -> str:
        if event == 5:
            return "<think>x</think><answer>x</answer>"
        return said.get(event, f"<think>x</think><search>query {event} {member}</search>")

    team = TeamConfig(workflow="search", orchestration="routed", members=3, rounds=3)
    rollouts, _ = play_workflow(script, team, SEARCH)
    assert ledger(rollouts) == [1, 2, 1, 1, 1, 1]
    assert len(rollouts.turns) == 7
    assert [row[AGENT] for row in rollouts.turns] == [
        *("router", "searcher1", "searcher2", "router", "searcher3", "router", "answerer")
    ]


def test_s15_a_query_that_saw_another_is_an_event_of_its_own() -> None:
    trace = [["r1"], ["q1", "q2"], ["v1"], ["q3"], ["v2"], ["a1"]]
    rollouts, _ = play_plan(say_once, trace)
    assert ledger(rollouts) == [1, 2, 1, 1, 1, 1]
    assert len(rollouts.turns) == 7
    rollouts, sampler = play_plan(say_once, [["r1"], ["q1"], ["q2"], ["v1"], ["q3"], ["v2"], ["a1"]])
    assert ledger(rollouts) == [1] * 7
    assert say_once(1, 0, "") in sampler.prompts[rollouts.turns[2]["turn_id"]]


@pytest.mark.parametrize(
    ("team", "sizes"),
    [
        (TeamConfig(workflow="search", members=2, rounds=1), [2, 1]),
        (TeamConfig(workflow="mathematics", orchestration="mixed", members=2), [2, 1, 1]),
        (TeamConfig(workflow="mathematics", orchestration="mixed", members=3), [3, 1, 1, 1]),
    ],
)
def test_s15_ledgers_of_the_paper(team: TeamConfig, sizes: list[int]) -> None:
    """Search-1, Math-1 (approved), Math-2 (rejected, revised)."""

    def script(event: int, member: int, prompt: str) -> str:
        if "<verify>" in prompt:
            return f"<verify>{'approve' if team.members == 2 else 'reject'}</verify>"
        if "FINAL:" in prompt:
            return r"FINAL: \boxed{1}"
        tag = "answer" if "<answer>" in prompt else "search"
        return rf"<think></think><{tag}>x</{tag}>" if team.workflow == "search" else r"\boxed{1}"

    assert ledger(play_workflow(script, team, ENVIRONMENTS[team.workflow])[0]) == sizes


def test_s15_the_ledger_of_two_parallel_sets() -> None:
    """Search-2."""
    assert ledger(play_plan(say_once, [["q1", "q2", "q3"], ["q4", "q5"]])[0]) == [3, 2]


@pytest.mark.parametrize(
    "said",
    [
        *("1,2", "<route></route>", "<route>0</route>", "<route>4</route>", "<route>1,1</route>", "<route>1,4</route>"),
        *("<route>1,</route>", "<route>all</route>", "<route>stop</route>", "<route>1</route><route>2</route>"),
        *("<route>1 2</route>", "<route>1</route>…", "<route>STOP,1</route>", "</route>1<route>", "<route>²</route>"),
    ],
)
def test_q10_a_malformed_route_is_an_invalid_singleton_and_no_proposals_follow(said: str) -> None:
    team = TeamConfig(workflow="mathematics", orchestration="routed", members=3, rounds=2)

    def script(event: int, member: int, prompt: str) -> str:
        return said if event < 2 else r"FINAL: \boxed{1}"

    rollouts, _ = play_workflow(script, team, MATH)
    assert [(row["event_type"], row["event_size"], row["valid"]) for row in rollouts.turns] == [
        *(("router", 1, False), ("router", 1, False), ("aggregate", 1, True))
    ]
    assert [row["action"] for row in rollouts.turns] == ["", "", "1"]
