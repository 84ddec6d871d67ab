"""How episodes end, and what infrastructure faults do and do not do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import World, play, specs

from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.types import AgentRLError, episode_schema, rollout_schema


def ending(rollouts: Rollouts) -> str:
    """The ending of the one episode; its last turn, if there is one, says the same."""
    (episode,) = rollouts.episodes
    if rollouts.turns:
        assert rollouts.turns[-1]["ending"] == episode["ending"]
        assert [turn["done"] for turn in rollouts.turns] == [False] * (len(rollouts.turns) - 1) + [True]
    assert rollouts.endings == {episode["ending"]: 1}
    return str(episode["ending"])


@pytest.mark.parametrize(
    ("answers", "expected", "turns", "success"),
    [
        (["look", "win"], "success", 2, True),
        (["look", "lose"], "failure", 2, False),
        (["look"] * 9, "truncated_turns", 5, False),
        (["…", "…", "…"], "parse_error", 3, False),
        (["…", "…", "look", "…", "…"], "truncated_turns", 5, False),
        (["…", "look\nwin", "…"], "parse_error", 3, False),
    ],
)
def test_the_agent_ends_an_episode(answers: list[str], expected: str, turns: int, success: bool) -> None:
    rollouts, _ = play(lambda _, step: answers[step], specs("a"))
    assert ending(rollouts) == expected
    (episode,) = rollouts.episodes
    assert (episode["length"], episode["success"], episode["return"]) == (turns, success, float(success))
    assert [turn["valid"] for turn in rollouts.turns] == [
        answer in ("look", "win", "lose") for answer in answers[:turns]
    ]


def test_an_episode_ends_when_its_context_is_full() -> None:
    rollouts, sampler = play(lambda *_: "look", specs("a"), max_context_tokens=45, max_turns=50)
    assert ending(rollouts) == "truncated_tokens"
    assert rollouts.episodes[0]["return"] == 0.0
    assert max(len(request.prompt_ids) for request in sampler.requests) <= 45 - 16


def test_a_task_whose_first_prompt_does_not_fit_is_a_mistake_of_the_configuration() -> None:
    """Such an episode has no turn to train on and no leaf: the file contract has no place for it."""
    with pytest.raises(AgentRLError, match=r"max_context_tokens"):
        play(lambda *_: "look", specs("a"), max_context_tokens=20)


@pytest.mark.parametrize("place", ["reset a", "step a 0", "step a 1", "state_key a 0", "state_key a 1"])
def test_a_fault_is_retried_from_the_start_and_leaves_no_trace_in_the_rows(place: str) -> None:
    script = ["look", "look", "win"]
    clean, _ = play(lambda _, step: script[step], specs("a", "b"))
    world = World({place: 1})
    rollouts, _ = play(lambda _, step: script[step], specs("a", "b"), world=world, retries=1)
    assert rollouts.retried == 1
    assert (rollouts.turns, rollouts.episodes) == (clean.turns, clean.episodes)
    assert world.opened == world.closed == 3


def test_the_cost_of_discarded_attempts_is_counted() -> None:
    script = ["look", "look", "win"]
    clean, _ = play(lambda _, step: script[step], specs("a"))
    rollouts, sampler = play(lambda _, step: script[step], specs("a"), world=World({"step a 1": 2}), retries=2)
    discarded = {
        "environment_steps": 2,
        "sampled_tokens": sum(len(turn["response_ids"]) for turn in clean.turns[:2]),
        "prompt_tokens": sum(len(turn["prompt_ids"]) for turn in clean.turns[:2]),
        "tool_calls": 1,
    }
    assert rollouts.turns == clean.turns
    assert clean.cost["sampled_tokens"] == clean.episodes[0]["sampled_tokens"]
    assert clean.cost["prompt_tokens"] == clean.episodes[0]["prompt_tokens"]
    assert rollouts.cost == {name: clean.cost[name] + 2 * spent for name, spent in discarded.items()}
    assert rollouts.cost["environment_steps"] == rollouts.model_calls == len(sampler.requests) == 7


@pytest.mark.parametrize(
    ("place", "turns"), [("reset a", 0), ("state_key a 0", 0), ("step a 0", 1), ("step a 1", 2), ("state_key a 2", 2)]
)
def test_a_lasting_fault_carries_no_reward(place: str, turns: int) -> None:
    script = ["look", "look", "win"]
    rollouts, _ = play(lambda _, step: script[step], specs("a", "b"), world=World({place: 9}), retries=2)
    faulty, whole = rollouts.episodes
    assert rollouts.retried == 2
    assert (faulty["ending"], faulty["length"]) == ("env_error", turns)
    assert (faulty["return"], faulty["success"], faulty["score"]) == (None, None, None)
    assert (whole["ending"], whole["return"]) == ("success", 1.0)
    rows = [turn for turn in rollouts.turns if turn["task_id"] == "a"]
    assert [turn["reward"] is None for turn in rows] == [False] * (turns - 1) + [True] * (turns > 0)


def test_a_fault_while_admissible_actions_are_listed_is_a_fault_of_the_episode() -> None:
    prompt = {"first": "{observation} {admissible}"}
    world = World({"admissible a 0": 1, "admissible b 1": 9})
    rollouts, _ = play(lambda *_: "look", specs("a", "b"), world=world, retries=1, prompt=prompt)
    assert [episode["ending"] for episode in rollouts.episodes] == ["truncated_turns", "env_error"]


def test_too_many_faults_fail_with_their_number_and_the_setting() -> None:
    faults = {"reset a": 9, "reset b": 9}
    for share in (0.5, 1.0):
        play(lambda *_: "win", specs("a", "b", "c", "d"), world=World(dict(faults)), max_fault_share=share)
    with pytest.raises(AgentRLError, match=r"2 of 4 episodes .*env_error.*rollout.max_fault_share allows 49%"):
        play(lambda *_: "win", specs("a", "b", "c", "d"), world=World(dict(faults)), max_fault_share=0.49)


def test_faults_are_a_share_of_all_batches_of_a_stage_and_leave_no_environment_open() -> None:
    forkable = [replace(spec, forkable=True) for spec in specs("a", "b")]
    world = World({"reset a": 2})
    limit: dict[str, Any] = {"world": world, "max_fault_share": 0.3}
    with pytest.raises(AgentRLError, match=r"1 of 2 episodes"):
        play(lambda *_: "win", forkable, **limit)
    assert world.opened == world.closed == 2
    rollouts, _ = play(lambda *_: "win", forkable, earlier={"success": 1, "left": 1}, **limit)
    rollouts.release()
    assert world.opened == world.closed == 4


def test_rows_fit_the_file_contract_whatever_the_ending() -> None:
    import pyarrow as pa

    scripts = {"a": ["win"], "b": ["…"] * 9, "c": ["look"] * 9, "d": ["look"] * 9}
    rollouts, _ = play(
        lambda session, step: scripts[session.split(".")[2]][step], specs(*scripts), world=World({"step d 1": 1})
    )
    for rows, schema in ((rollouts.turns, rollout_schema()), (rollouts.episodes, episode_schema())):
        table = pa.Table.from_pylist(rows, schema=schema)
        assert all(set(row) == set(schema.names) for row in rows)
        for field in schema:
            assert field.nullable or table.column(field.name).null_count == 0, field.name


def test_the_process_reward_is_the_change_of_progress_inside_the_open_interval() -> None:
    answers = ["+7", "+10", "+0", "+10", "+none"]
    rollouts, _ = play(lambda _, step: answers[step], specs("a"))
    rewards = [turn["process_reward"] for turn in rollouts.turns]
    assert rewards[:2] == pytest.approx([0.2, 0.3])
    assert rewards[2:] == [-0.999, 0.999, None]
