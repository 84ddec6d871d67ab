"""The native ALFWorld engine: texts, outcomes, goals, and the environment protocol's promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.envs.alfworld.gamefile import load_packed
from agentbench_rl.envs.alfworld.suite import AlfworldSuite
from agentbench_rl.envs.alfworld.world import parse_world
from agentbench_rl.types import AgentRLError, InfrastructureError, StepResult
from tests.envs.small_games import small_game

WORLDS = {task_type: parse_world(small_game(task_type)) for task_type in TASK_TYPES}
#: A walk is a list of choices: an index into the admissible commands, or None for a command that is not one.
walks = st.lists(st.one_of(st.none(), st.integers(0, 999)), max_size=25)
kinds = st.sampled_from(TASK_TYPES)


def start(task_type: str = "pick_and_place_simple") -> AlfworldEngine:
    return AlfworldEngine.at_start(WORLDS[task_type])


def play(engine: AlfworldEngine, *commands: str) -> str:
    """Observation after the last command; every command must be admissible."""
    observation = ""
    for command in commands:
        assert command in engine.admissible()
        observation = engine.step(command).observation
    return observation


def walk(engine: AlfworldEngine, choices: list[int | None]) -> list[tuple[StepResult, list[str], str]]:
    trace = []
    for choice in choices:
        commands = engine.admissible()
        result = engine.step("dance" if choice is None else commands[choice % len(commands)])
        trace.append((result, engine.admissible(), engine.digest()))
    return trace


def test_real_games_are_won_by_their_walkthroughs(data_dir: Path) -> None:
    folder = data_dir / "alfworld"
    domain, grammar = (folder / "domain.pddl").read_text(), (folder / "grammar.twl2").read_text()
    games = load_packed(folder / "sample_72.jsonl.xz", domain, grammar)
    assert len(games) == 72
    for game in games:
        engine = AlfworldEngine.at_start(parse_world(game))
        results = [engine.step(command) for command in game.walkthrough]
        assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0], game.task_id
        assert all(result.done is result.success is (result.process_reward == 1.0) for result in results)


def test_first_observation_lists_the_room_backwards_and_tells_the_task() -> None:
    suite = AlfworldSuite({"train": [small_game()]})
    assert suite.make().reset(suite.tasks("train")[0]).text == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a cabinet 3, a cabinet 2, a cabinet 1, a desk 1, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1."
        "\n\nYour task is to: do something with an apple."
    )


def test_commands_and_answers_at_the_start() -> None:
    engine = start()
    assert play(engine, "look") == ("You are in the middle of a room. Looking quickly around you, you see nothing.")
    assert play(engine, "inventory") == "You are not carrying anything."
    assert play(engine, "help") == "Ask."
    assert engine.admissible() == sorted(
        ["help", "inventory", "look"] + [f"go to {name}" for name in engine.world.receptacle_names]
    )


@pytest.mark.parametrize(
    "command", ["", "Look", "take apple 2 from cabinet 3", "go to shelf 1", "put apple 2 in fridge 1"]
)
def test_anything_inadmissible_changes_nothing(command: str) -> None:
    engine = start()
    before = engine.state_key()
    assert engine.step(command) == StepResult("Nothing happens.", 0.0, False, False, 0.0)
    assert engine.state_key() == before


def test_white_space_around_a_command_is_ignored() -> None:
    assert start().step("  go to fridge 1\n").observation == "You arrive at fridge 1. The fridge 1 is closed."


def test_receptacles_open_close_and_hide_what_they_hold() -> None:
    engine = start()
    play(engine, "go to desk 1")
    assert "take knife 1 from drawer 1" not in engine.admissible()
    opened = "The drawer 1 is open. In it, you see a desklamp 1, and a knife 1."
    assert play(engine, "examine drawer 1") == "The drawer 1 is closed."
    assert play(engine, "open drawer 1") == f"You open the drawer 1. {opened}"
    assert play(engine, "examine drawer 1") == opened
    assert "take knife 1 from drawer 1" in engine.admissible()
    assert play(engine, "close drawer 1") == "You close the drawer 1."
    assert "open drawer 1" in engine.admissible()


def test_a_lamp_in_a_closed_drawer_can_be_used() -> None:
    assert play(start(), "go to desk 1", "use desklamp 1") == "You turn on the desklamp 1."


def test_an_object_in_two_receptacles_stays_in_the_second() -> None:
    engine = start()
    assert play(engine, "go to desk 1", "take knife 1 from desk 1") == "You pick up the knife 1 from the desk 1."
    assert play(engine, "open drawer 1") == (
        "You open the drawer 1. The drawer 1 is open. In it, you see a desklamp 1, and a knife 1."
    )
    assert play(engine, "inventory") == "You are carrying: a knife 1."


def test_look_lists_a_moved_object_once_per_receptacle_it_left_here() -> None:
    engine = start()
    facing = "You are facing the cabinet 3, cabinet 2, and cabinet 1. Next to it, you see"
    assert play(engine, "go to cabinet 1", "look") == f"{facing} nothing."
    play(engine, "take apple 2 from cabinet 3", "move apple 2 to cabinet 2")
    assert play(engine, "look") == f"{facing} a apple 2."
    play(engine, "take apple 2 from cabinet 2", "move apple 2 to cabinet 1")
    assert play(engine, "look") == f"{facing} a apple 2, and a apple 2."
    play(engine, "take apple 2 from cabinet 1", "move apple 2 to cabinet 2")
    assert play(engine, "look") == f"{facing} a apple 2, and a apple 2."


def test_examining_the_object_in_hand_tells_its_condition() -> None:
    engine = start()
    play(engine, "go to cabinet 1", "take apple 2 from cabinet 3")
    assert play(engine, "examine apple 2") == "There's nothing special about apple 2."
    assert play(engine, "go to fridge 1", "cool apple 2 with fridge 1") == "You cool the apple 2 using the fridge 1."
    assert play(engine, "examine apple 2") == "This is a cold apple 2."
    play(engine, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1")
    assert play(engine, "examine apple 2") == "This is a cool and clean apple 2."
    play(engine, "go to microwave 1", "heat apple 2 with microwave 1")
    assert play(engine, "examine apple 2") == "This is a hot and clean apple 2."


def test_slicing_takes_a_knife_in_hand_and_food_here() -> None:
    engine = start()
    play(engine, "go to desk 1", "take knife 1 from desk 1", "go to sinkbasin 1")
    assert play(engine, "slice apple 1 with knife 1") == "You sliced the apple 1 with the knife 1."
    play(engine, "move knife 1 to sinkbasin 1", "take apple 1 from sinkbasin 1")
    assert play(engine, "examine apple 1") == "This is a sliced apple 1."


def test_a_bowl_tells_what_was_in_it_at_the_start() -> None:
    play(engine := start(), "go to desk 1", "take bowl 1 from desk 1")
    assert play(engine, "examine bowl 1") == "This is a normal bowl 1. In it, you see a pen 1."


FETCH = ["go to cabinet 1", "take apple 2 from cabinet 3"]
STORE = ["go to fridge 1", "open fridge 1", "move apple 2 to fridge 1"]
SECOND = ["go to sinkbasin 1", "take apple 1 from sinkbasin 1", "go to fridge 1", "move apple 1 to fridge 1"]


@pytest.mark.parametrize(
    ("task_type", "commands", "progress"),
    [
        ("pick_and_place_simple", [*FETCH, *STORE], [0, 0, 0, 0, 1]),
        ("pick_two_obj_and_place", [*FETCH, *STORE, *SECOND], [0, 0, 0, 0, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1]),
        (
            "pick_clean_then_place_in_recep",
            [*FETCH, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1", *STORE],
            [0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 1],
        ),
        (
            "pick_heat_then_place_in_recep",
            [*FETCH, "go to microwave 1", "heat apple 2 with microwave 1", *STORE],
            [0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 1],
        ),
        (
            "pick_cool_then_place_in_recep",
            [*FETCH, "go to fridge 1", "cool apple 2 with fridge 1", "open fridge 1", "move apple 2 to fridge 1"],
            [0, 0, 0, 1 / 3, 1 / 3, 1],
        ),
        ("look_at_obj_in_light", [*FETCH, "go to desk 1", "use desklamp 1"], [0, 1 / 2, 1 / 2, 1]),
    ],
)
def test_each_goal_is_reached_condition_by_condition(
    task_type: str, commands: list[str], progress: list[float]
) -> None:
    engine = start(task_type)
    results = [engine.step(command) for command in commands]
    assert [result.process_reward for result in results] == progress
    assert [result.success for result in results] == [value == 1 for value in progress]


def test_a_treated_and_another_placed_object_do_not_win() -> None:
    engine = start("pick_heat_then_place_in_recep")
    play(engine, *FETCH, "go to microwave 1", "heat apple 2 with microwave 1", "go to sinkbasin 1")
    play(engine, "move apple 2 to sinkbasin 1", "take apple 1 from sinkbasin 1", "go to fridge 1", "open fridge 1")
    assert engine.step("move apple 1 to fridge 1").process_reward == 2 / 3


@settings(max_examples=50, deadline=None)
@given(kinds, walks, walks, walks)
def test_neither_of_two_forks_sees_the_other(
    kind: str, prefix: list[int | None], left: list[int | None], right: list[int | None]
) -> None:
    engine = start(kind)
    walk(engine, prefix)
    expected = walk(engine.fork(), right)
    copy = engine.fork()
    walk(engine, left)
    assert walk(copy, right) == expected


@settings(max_examples=50, deadline=None)
@given(kinds, walks, walks, walks)
def test_restoring_a_snapshot_returns_to_the_very_moment(
    kind: str, prefix: list[int | None], detour: list[int | None], future: list[int | None]
) -> None:
    engine = start(kind)
    walk(engine, prefix)
    snapshot, digest = engine.snapshot(), engine.digest()
    expected = walk(engine, future)
    for other in (engine, start("look_at_obj_in_light")):
        walk(other, detour)
        other.restore(snapshot)
        assert (other.snapshot(), other.digest()) == (snapshot, digest)
        assert walk(other, future) == expected


@settings(max_examples=50, deadline=None)
@given(kinds, walks)
def test_an_episode_is_a_function_of_its_actions(kind: str, choices: list[int | None]) -> None:
    again = AlfworldEngine.at_start(parse_world(small_game(kind)))
    assert walk(start(kind), choices) == walk(again, choices)


@settings(max_examples=50, deadline=None)
@given(kinds, walks, st.lists(st.sampled_from(["look", "inventory", "dance"]), min_size=1, max_size=3), walks)
def test_equal_state_keys_mean_equal_futures_and_the_digest_counts_steps(
    kind: str, prefix: list[int | None], idle: list[str], future: list[int | None]
) -> None:
    short, long = start(kind), start(kind)
    walk(short, prefix)
    walk(long, prefix)
    for command in idle:
        long.step(command)
    assert short.state_key() == long.state_key()
    assert short.digest() != long.digest()
    assert [step[:2] for step in walk(short, future)] == [step[:2] for step in walk(long, future)]


def test_different_ways_to_a_state_share_its_key_and_different_states_do_not() -> None:
    direct, detour = start(), start()
    play(direct, "go to fridge 1")
    play(detour, "go to desk 1", "go to fridge 1", "open fridge 1", "close fridge 1")
    assert direct.state_key() == detour.state_key()
    play(detour, "open fridge 1")
    assert direct.state_key() != detour.state_key()


def test_state_keys_of_two_tasks_differ() -> None:
    worlds = [parse_world(small_game(trial=trial)) for trial in ("trial_1", "trial_2")]
    assert len({AlfworldEngine.at_start(world).state_key() for world in worlds}) == 2


def test_callers_cannot_change_the_commands() -> None:
    engine = start()
    engine.admissible().clear()
    assert "look" in engine.admissible()


def test_a_foreign_snapshot_and_a_step_before_reset_are_faults() -> None:
    with pytest.raises(InfrastructureError, match="no snapshot of the native engine"):
        start().restore("moment")
    suite = AlfworldSuite({"train": [small_game()]})
    for use in (lambda engine: engine.step("look"), lambda engine: engine.state_key(), lambda engine: engine.fork()):
        with pytest.raises(InfrastructureError, match="reset"):
            use(suite.make())


def test_a_suite_refuses_tasks_that_are_not_its_own() -> None:
    suite = AlfworldSuite({"train": [small_game()], "valid_seen": []})
    (task,) = suite.tasks("train")
    assert suite.splits() == ("train", "valid_seen")
    with pytest.raises(AgentRLError, match="no split 'test'"):
        suite.tasks("test")
    with pytest.raises(AgentRLError, match="no game 'train/x/y'"):
        suite.make().reset(replace(task, task_id="train/x/y"))
    with pytest.raises(AgentRLError, match="differs from the one the task was drawn from"):
        suite.make().reset(replace(task, content_hash="0" * 64))


def test_an_exported_suite_opens_equal(tmp_path: Path) -> None:
    games = [small_game(kind, trial=f"trial_{index}") for index, kind in enumerate(TASK_TYPES)]
    suite = AlfworldSuite({"train": games, "valid_seen": [small_game(split="valid_seen")]})
    suite.export([*suite.tasks("train"), *suite.tasks("valid_seen")], tmp_path)
    again = AlfworldSuite.from_path(tmp_path)
    assert {split: again.tasks(split) for split in again.splits()} == {
        split: suite.tasks(split) for split in suite.splits()
    }


def test_the_recorded_walkthrough_demonstrates_each_command_until_it_was_executed() -> None:
    suite = AlfworldSuite({"train": [small_game()]})
    (task,) = suite.tasks("train")
    expert = suite.demonstrator("walkthrough", suite.make(), task, seed=0)
    executed = [None, "look", "go to cabinet 3", "take apple 2 from cabinet 3"]
    first, second = small_game().walkthrough
    assert [expert("", command) for command in executed] == [first, first, second, None]
    with pytest.raises(AgentRLError, match="no expert 'oracle'"):
        suite.demonstrator("oracle", suite.make(), task, seed=0)


def test_textworld_that_is_not_installed_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("agentbench_rl.envs.alfworld.textworld_engine.version", missing)
    with pytest.raises(AgentRLError, match=r"pip install 'agentbench_rl\[alfworld\]'"):
        AlfworldSuite({"train": [small_game()]}, engine="textworld")
