"""The shipped workflows: strict grammar, translation to the environment, order of events, demonstrations, settings."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError
from team_world import ledger, play_workflow
from test_team_rules import ENVIRONMENTS, HOUSE, MATH, SEARCH

from agentbench_rl.config.environment import EnvironmentConfig, GemEnvironment, PromptConfig
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.envs import open_source
from agentbench_rl.envs.base import Environment
from agentbench_rl.rollout.workflows import grammar, open_workflow
from agentbench_rl.rollout.workflows.base import Demonstration, Workflow
from agentbench_rl.types import AgentRLError, StepResult

ORCHESTRATIONS = ("fixed", "mixed", "routed")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"FINAL: \boxed{7}", "7"),
        ("So it is.\nFINAL:\n\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        (r"\boxed{7}", None),
        (r"\boxed{7} FINAL: 7", None),
        (r"FINAL: \boxed{7} FINAL: \boxed{7}", None),
        (r"FINAL: \boxed{}", None),
        (r"final: \boxed{7}", None),
        (r"FINAL: \boxed{7", None),
    ],
)
def test_an_aggregator_says_final_once_and_boxes_the_answer(text: str, answer: str | None) -> None:
    assert grammar.final_answer(text, True) == answer
    assert grammar.final_answer(text, False) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<verify>approve</verify>", "approve"),
        ("I checked: <verify>reject</verify>", "reject"),
        ("approve", None),
        ("<verify> approve </verify>", None),
        ("<verify>yes</verify>", None),
        ("<verify>approve</verify><verify>approve</verify>", None),
        ("<verify>approve</verify><verify>", None),
        ("</verify>approve<verify>", None),
    ],
)
def test_a_verifier_says_exactly_one_known_word(text: str, word: str | None) -> None:
    assert grammar.verdict(text, True, ("approve", "reject")) == word
    assert grammar.verdict(text, False, ("approve", "reject")) is None


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("<think></think><search>a b</search>", "a b"),
        ("<think>because</think>\n<search> a </search>", "a"),
        ("<search>a</search>", None),
        ("<search>a</search><think></think>", None),
        ("<think><search>a</search></think>", None),
        ("<think></think><search> </search>", None),
        ("<think></think><search>a</search><search>b</search>", None),
        ("<think></think><think></think><search>a</search>", None),
        ("<think></think><search>a", None),
    ],
)
def test_a_searcher_thinks_once_and_then_searches_once(text: str, query: str | None) -> None:
    assert grammar.thought_and(text, True, "search") == query
    assert grammar.thought_and(text, False, "search") is None


def test_routes_are_read_in_any_order_and_members_act_in_ascending_order() -> None:
    assert grammar.route("<route>3,1</route>", True, 3) == "3,1"
    assert grammar.chosen_agents("3,1") == (1, 3)
    assert grammar.chosen_agents("STOP") == ()
    assert grammar.route("<route>10,2</route>", True, 10) == "10,2"
    assert grammar.route(f"<route>{'1' * 5000}</route>", True, 10) is None


@pytest.mark.parametrize(("answer_format", "sent"), [("plain", "12"), ("boxed", r"\boxed{12}")])
def test_the_aggregators_answer_goes_to_the_environment_in_its_format(answer_format: str, sent: str) -> None:
    environment = MATH.model_copy(update={"answer_format": answer_format})
    team = TeamConfig(workflow="mathematics", members=1, rounds=1)
    rollouts, _ = play_workflow(lambda event, *_: (r"\boxed{1}", r"FINAL: \boxed{12}")[event], team, environment)
    assert [row["action"] for row in rollouts.turns] == [r"\boxed{1}", sent]
    assert rollouts.turns[1]["valid"]
    assert rollouts.endings.keys() <= {"success", "failure"}


def test_an_aggregator_outside_the_grammar_answers_nothing() -> None:
    team = TeamConfig(workflow="mathematics", members=1, rounds=1)
    rollouts, _ = play_workflow(lambda *_: r"\boxed{1}", team, MATH)
    assert rollouts.endings == {"failure": 1}
    assert rollouts.cost["environment_steps"] == 0
    assert [row["valid"] for row in rollouts.turns] == [True, False]


def test_an_environment_that_refuses_an_answer_makes_the_response_invalid() -> None:
    team = TeamConfig(workflow="mathematics", members=1, rounds=1)
    rollouts, _ = play_workflow(lambda event, *_: (r"\boxed{1}", "FINAL: \\boxed{1\n2}")[event], team, MATH)
    assert not rollouts.turns[1]["valid"]
    assert rollouts.cost["environment_steps"] == 1


@pytest.mark.parametrize(
    ("verdicts", "events"),
    [
        (["approve"], ["propose", "verify", "aggregate"]),
        (["reject", "approve"], ["propose", "verify", "revise", "verify", "aggregate"]),
        (["reject", "reject"], ["propose", "verify", "revise", "verify", "revise", "aggregate"]),
        (["what", "approve"], ["propose", "verify", "verify", "aggregate"]),
        (["what", "what"], ["propose", "verify", "verify", "aggregate"]),
    ],
)
def test_a_verifier_decides_on_every_round_but_the_first(verdicts: list[str], events: list[str]) -> None:
    left = list(verdicts)

    def script(event: int, member: int, prompt: str) -> str:
        return f"<verify>{left.pop(0)}</verify>" if "<verify>" in prompt else r"FINAL: \boxed{1}"

    team = TeamConfig(workflow="mathematics", orchestration="mixed", members=2, rounds=3)
    rollouts, _ = play_workflow(script, team, MATH)
    assert [row["event_type"] for row in rollouts.turns if row["member"] == 0] == events


def test_after_an_environment_step_proposals_are_forgotten_and_its_outcome_is_remembered() -> None:
    team = TeamConfig(workflow="propose_act", members=2, rounds=1, history=2)

    def script(event: int, member: int, prompt: str) -> str:
        return f"try {event}{member}" if event % 2 == 0 else f"act {event}"

    rollouts, sampler = play_workflow(script, team, HOUSE)
    assert ledger(rollouts) == [2, 1] * 4
    assert rollouts.endings == {"truncated_turns": 1}
    prompts = [sampler.prompts[row["turn_id"]] for row in rollouts.turns if row["member"] == 0]
    assert prompts[1].endswith("proposer1: try 00\nproposer2: try 01")
    assert "try" not in prompts[2]
    assert "> act 1\nNothing happens." in prompts[2]
    assert "> act 1" not in prompts[6]
    assert "> act 3" in prompts[6]
    assert prompts[6].endswith("\nYou are proposer 1.")


def test_actors_write_actions_as_the_environment_asks() -> None:
    tags = HOUSE.model_copy(update={"prompt": PromptConfig(action_format="tags"), "max_turns": 1})
    said = "<think></think><action>look</action>"
    team = TeamConfig(workflow="propose_act", members=1, rounds=1)
    rollouts, _ = play_workflow(lambda event, *_: said if event else "look", team, tags)
    assert [(row["action"], row["valid"]) for row in rollouts.turns] == [("", False), ("look", True)]


@pytest.mark.parametrize("orchestration", ORCHESTRATIONS)
@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_what_demonstrations_say_is_well_formed_and_solves_tasks(name: Any, orchestration: Any) -> None:
    team = TeamConfig(workflow=name, orchestration=orchestration, members=3, rounds=3)
    environment = ENVIRONMENTS[name].model_copy(update={"max_turns": 30})
    workflow, suite = open_workflow(team, environment), open_source(environment, {"train": 6})
    rng = random.Random(0)
    solved, said = 0, list[Demonstration]()
    for task in suite.tasks("train"):
        world = suite.make()
        demonstrator = suite.demonstrator(environment.expert, world, task, 0) if name == "propose_act" else None
        observation = world.reset(task).text
        won, spoken = demonstrated(workflow, world, observation, demonstrator, rng)
        solved += won
        said += spoken
    assert solved >= 5
    assert {one.trainable for one in said} == {True, False}


def demonstrated(
    workflow: Workflow[Any], world: Environment, observation: str, demonstrator: Any, rng: random.Random
) -> tuple[bool, list[Demonstration]]:
    """Whether an episode of demonstrations is won, and what was said."""
    memory, action, said = workflow.start(observation), None, list[Demonstration]()
    expert = demonstrator(observation, action) if demonstrator else world.expert_action()
    while (active := workflow.next_set(memory)) is not None:
        spoken = workflow.demonstrate(memory, active, expert, rng)
        if spoken is None:
            return False, said
        said += spoken
        moves = workflow.moves(active, [(one.text, True) for one in spoken])
        assert all(move.valid for move in moves)
        results: list[StepResult | None] = []
        for move in moves:
            results.append(world.step(move.action) if move.to_environment else None)
            if results[-1] is not None:
                action, observation = move.action, results[-1].observation
        if results[-1] is not None and results[-1].done:
            return results[-1].success, said
        memory = workflow.commit(memory, active, moves, results)
        if results[-1] is not None or not demonstrator:
            expert = demonstrator(observation, action) if demonstrator else world.expert_action()
    return False, said


def test_nobody_demonstrates_where_no_expert_knows() -> None:
    for name, environment in ENVIRONMENTS.items():
        workflow = open_workflow(TeamConfig.model_validate({"workflow": name}), environment)
        memory = workflow.start("?")
        active = workflow.next_set(memory)
        assert active is not None
        assert workflow.demonstrate(memory, active, None, random.Random(0)) is None


@pytest.mark.parametrize("orchestration", ORCHESTRATIONS)
@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_instructions_are_those_of_the_roles_that_there_are(name: Any, orchestration: Any) -> None:
    team = TeamConfig(workflow=name, orchestration=orchestration, members=2)
    roles = list(open_workflow(team, ENVIRONMENTS[name]).instructions)
    assert ("router" in roles) == (orchestration == "routed")
    assert ("verifier" in roles) == (orchestration == "mixed")
    assert ("reviser" in roles) == (orchestration == "mixed" and name == "mathematics")
    assert roles[-1] in ("aggregator", "answerer", "actor")


@pytest.mark.parametrize(
    ("team", "environment", "message"),
    [
        ({"workflow": "mathematics"}, SEARCH, "mathematics needs environment.name: math, not search"),
        ({"workflow": "search"}, MATH, "search needs environment.name: search, not math"),
        ({"workflow": "mathematics"}, MATH.model_copy(update={"calculator": True}), "environment.calculator to false"),
        ({"workflow": "search"}, SEARCH.model_copy(update={"max_turns": 8}), "environment.max_turns is 8.* need 9"),
        (
            {"workflow": "mathematics", "instructions": {"solver": "", "judge": ""}},
            MATH,
            "team.instructions: unknown roles judge; this team has solver, aggregator",
        ),
    ],
)
def test_what_does_not_fit_is_refused(team: dict[str, Any], environment: EnvironmentConfig, message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        open_workflow(TeamConfig.model_validate(team), environment)


@pytest.mark.parametrize("change", [{"members": 0}, {"rounds": 0}, {"history": 0}, {"workflow": "chess"}, {"size": 3}])
def test_settings_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TeamConfig.model_validate({"workflow": "mathematics"} | change)


def test_a_verifier_needs_a_second_round_to_decide_on() -> None:
    with pytest.raises(ValidationError, match="set rounds to at least 2, or orchestration to fixed"):
        TeamConfig(workflow="search", orchestration="mixed", rounds=1)


def test_proposals_suit_any_environment_of_words() -> None:
    team = TeamConfig(workflow="propose_act", rounds=1)
    workflow = open_workflow(team, GemEnvironment(name="gem"))
    active = workflow.next_set(workflow.start("Guess."))
    assert active is not None
    assert len(active.members) == workflow.largest_set == 4
    said = [("42", True), ("4", False), ("", True), ("1\n2", True)]
    assert [move.action for move in workflow.moves(active, said)] == ["42", "", "", ""]
