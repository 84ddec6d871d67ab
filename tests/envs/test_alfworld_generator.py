"""Generated ALFWorld games: determinism, disjoint splits, solvability, and the form of the real games."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld import generator
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.envs.alfworld.gamefile import GameFile, load_games, write_packed
from agentbench_rl.envs.alfworld.generator import SPLITS, Sizes, generate, generate_split
from agentbench_rl.envs.alfworld.goal import parse_goal
from agentbench_rl.envs.alfworld.household import ROOMS, tables
from agentbench_rl.envs.alfworld.suite import AlfworldSuite
from agentbench_rl.envs.alfworld.world import World, parse_world
from agentbench_rl.types import AgentRLError

SMALL = Sizes(receptacles=(6, 9), objects=(6, 12), floor_plans=8, task_types=TASK_TYPES)
LARGE = Sizes(receptacles=(15, 35), objects=(20, 40), floor_plans=8, task_types=TASK_TYPES)
TINY = Sizes(receptacles=(5, 5), objects=(4, 4), floor_plans=1, task_types=("look_at_obj_in_light",))


@pytest.fixture(scope="module")
def splits() -> dict[str, list[GameFile]]:
    return {split: generate_split(3, split, 90, **SMALL) for split in SPLITS}


def play_walkthrough(game: GameFile) -> list[bool]:
    engine = AlfworldEngine.at_start(parse_world(game))
    return [engine.step(command).success for command in game.walkthrough]


def room_text(world: World) -> tuple[str, ...]:
    return tuple(sorted(world.receptacle_names))


def household_text(game: GameFile) -> tuple[Any, ...]:
    """All that decides about a game's texts and commands, without ids."""
    world = parse_world(game)
    together = tuple(tuple(sorted(world.receptacle_names[r] for r in here)) for here in world.receptacles_at)
    contents = tuple(tuple(sorted(world.object_names[item] for item in items)) for items in world.start.contents)
    return (world.goal, world.receptacle_names, tuple(sorted(together)), contents)


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("index", range(6))
def test_equal_arguments_give_equal_bytes(sizes: Sizes, index: int) -> None:
    first, second = (generate(7, "train", index, **sizes) for _ in range(2))
    assert first == second
    assert first.problem.encode() == second.problem.encode()
    assert generate(8, "train", index, **sizes).problem != first.problem
    assert generate(7, "train", index + 6, **sizes).problem != first.problem


def test_known_game_does_not_change() -> None:
    # Golden value: a change here changes every experiment on generated games, so it needs a new version.
    game = generate(0, "train", 0, **SMALL)
    assert game.content_hash == "a90407e28b8727c123a13a996d01b66a76040f004d374a18accb48a6812a2d1f"


def test_one_game_and_a_whole_split_agree() -> None:
    assert generate_split(3, "train", 12, **SMALL) == [generate(3, "train", i, **SMALL) for i in range(12)]


def test_packed_games_are_read_back(splits: dict[str, list[GameFile]], tmp_path: Path) -> None:
    write_packed([game for games in splits.values() for game in games], tmp_path)
    for split, games in splits.items():
        assert load_games(tmp_path, split) == sorted(games, key=lambda game: game.task_id)


def test_the_suite_plays_generated_games(splits: dict[str, list[GameFile]]) -> None:
    suite = AlfworldSuite(splits)
    task = suite.tasks("valid_unseen")[0]
    assert "Your task is to: " in suite.make().reset(task).text


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("split", SPLITS)
def test_walkthroughs_win_with_their_last_command(sizes: Sizes, split: str) -> None:
    for game in generate_split(11, split, 30, **sizes):
        *before, last = play_walkthrough(game)
        assert last
        assert not any(before)


def test_task_types_are_balanced(splits: dict[str, list[GameFile]]) -> None:
    for games in splits.values():
        assert Counter(game.task_type for game in games) == dict.fromkeys(TASK_TYPES, 15)


def test_no_game_occurs_twice(splits: dict[str, list[GameFile]]) -> None:
    seen = Counter(household_text(game) for games in splits.values() for game in games)
    assert max(seen.values()) == 1
    assert seen.total() == 3 * 90


def test_seen_floor_plans_are_shared_and_unseen_ones_are_new() -> None:
    rooms: dict[str, set[Any]] = {}
    two_plans = Sizes(receptacles=(6, 9), objects=(6, 12), floor_plans=2, task_types=TASK_TYPES)
    for split in SPLITS:
        games = generate_split(5, split, 120, **two_plans)
        rooms[split] = {room_text(parse_world(game)) for game in games}
    assert rooms["valid_seen"] == rooms["train"]
    assert not rooms["valid_unseen"] & rooms["train"]


def test_unseen_floor_plans_stay_unseen_under_other_seeds() -> None:
    one_room = Sizes(receptacles=(6, 7), objects=(6, 8), floor_plans=30, task_types=TASK_TYPES[3:4])
    train = {room_text(parse_world(game)) for game in generate_split(1, "train", 60, **one_room)}
    unseen = {room_text(parse_world(game)) for game in generate_split(2, "valid_unseen", 60, **one_room)}
    assert not train & unseen


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    split=st.sampled_from(SPLITS),
    index=st.integers(0, 10**4),
    receptacles=st.tuples(st.integers(5, 35), st.integers(0, 3)),
    objects=st.tuples(st.integers(4, 40), st.integers(0, 10)),
)
def test_sizes_are_kept_and_tables_respected(
    seed: int, split: str, index: int, receptacles: tuple[int, int], objects: tuple[int, int]
) -> None:
    least, most = receptacles[0], receptacles[0] + receptacles[1]
    fewest, limit = objects[0], objects[0] + objects[1]
    game = generate(
        seed,
        split,
        index,
        receptacles=(least, most),
        objects=(fewest, limit),
        floor_plans=3,
        task_types=TASK_TYPES,
    )
    world = parse_world(game)
    assert least <= len(world.receptacle_names) <= most
    assert fewest <= len(world.object_names) <= limit
    assert not world.receptacles_at[world.start.location]
    # Every portable object may be put back where it lies: no state is a dead end.
    for receptacle, items in enumerate(world.start.contents):
        assert world.pickupable.intersection(items) <= world.accepts[receptacle]
    assert play_walkthrough(game)[-1]


def test_usual_places_accept_their_objects() -> None:
    contains = tables()["contains"]
    for room in ROOMS:
        for kind, places in tables()[room]["objects"].items():
            if kind not in tables()["properties"]["toggleable"]:
                assert all(kind in contains[place] for place in places), kind


def test_sentences_problems_and_ids_have_the_form_of_the_real_games(
    splits: dict[str, list[GameFile]], data_dir: Path
) -> None:
    real = load_games(data_dir / "alfworld", "valid_seen")

    def shape(game: GameFile) -> tuple[str, str]:
        goal = parse_goal(game.problem[game.problem.index("(:goal") :].lower(), game.task_id)
        words = {goal.object_type[:-4], (goal.receptacle_type or goal.lamp_type or "")[:-4]}
        return game.task_type, " ".join("X" if w.strip(".") in words else w for w in game.goal.split())

    shapes = {shape(game) for games in splits.values() for game in games}
    assert shapes == {shape(game) for game in real}
    assert {game.task_type for game in real} == set(TASK_TYPES)
    number = r"(_(plus|minus)_\d\d_dot_\d\d|00_dot_00)"
    identifier = re.compile(rf"[A-Za-z]+(_bar_{number}){{3}}(_bar_(SinkBasin|BathtubBasin))?")
    for game in (*splits["train"][:6], *real[:6]):
        declared = re.findall(r"(\S+_bar_\S+) - receptacle", game.problem)
        assert declared
        assert all(identifier.fullmatch(name) for name in declared)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"receptacles": (3, 9)}, "receptacles: needs 5"),
        ({"objects": (12, 6)}, "objects: needs 4"),
        ({"floor_plans": 0}, "floor_plans: at least 1"),
        ({"task_types": ("juggle",)}, "juggle"),
        ({"receptacles": (90, 95)}, "receptacles: a .* holds at most"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        generate_split(0, "train", 6, **{**SMALL, **change})


def test_unknown_splits_are_refused() -> None:
    with pytest.raises(AgentRLError, match="valid_unseen"):
        generate(0, "test", 0, **SMALL)


def test_repeated_games_are_replaced_by_games_of_the_same_type() -> None:
    games = generate_split(0, "train", 300, **TINY)
    assert max(Counter(household_text(game) for game in games).values()) == 1
    assert any(game.task_id != generate(0, "train", i, **TINY).task_id for i, game in enumerate(games))
    assert generate_split(0, "train", 200, **TINY) == games[:200]


def test_more_games_than_the_sizes_allow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = generator._draft(0, "train", 0, TINY)
    monkeypatch.setattr(generator, "_draft", lambda *_: draft)
    with pytest.raises(AgentRLError, match="only 1 different games"):
        generate_split(0, "train", 2, **TINY)
