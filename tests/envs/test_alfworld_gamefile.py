"""ALFWorld games on disk: both forms hold the same games, and damage is told with place and remedy."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.gamefile import (
    GameFile,
    available_splits,
    load_games,
    load_packed,
    parse_game_json,
    write_packed,
)
from agentbench_rl.envs.alfworld.world import parse_world
from agentbench_rl.types import AgentRLError
from tests.envs.small_games import DOMAIN, GRAMMAR, small_game

GAMES = sorted((small_game(kind) for kind in TASK_TYPES), key=lambda game: game.task_id)


def write_tree(games: Sequence[GameFile], directory: Path) -> None:
    """Write the official tree `json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`."""
    for game in games:
        file = directory / "json_2.1.1" / game.task_id / "game.tw-pddl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(game.as_json()), encoding="utf-8", newline="")


def parse(game: GameFile, **changes: object) -> GameFile:
    text = json.dumps({**game.as_json(), **changes})
    return parse_game_json(text, origin="here.tw-pddl", task_id=game.task_id, split=game.split)


@pytest.mark.parametrize("write", [write_packed, write_tree])
def test_written_games_are_read_back_equal(write: Callable[..., None], tmp_path: Path) -> None:
    write([*reversed(GAMES), small_game(split="valid_seen")], tmp_path)
    assert load_games(tmp_path, "train") == GAMES
    assert load_games(tmp_path, "valid_seen") == [small_game(split="valid_seen")]
    assert available_splits(tmp_path) == ("train", "valid_seen")


def test_the_tree_is_found_without_its_release_directory(tmp_path: Path) -> None:
    write_tree(GAMES, tmp_path)
    assert load_games(tmp_path / "json_2.1.1", "train") == GAMES


def test_packing_is_deterministic_whatever_the_order(tmp_path: Path) -> None:
    write_packed(GAMES, tmp_path / "a")
    write_packed(GAMES[::-1], tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_packing_refuses_games_of_two_rule_sets(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match="one domain and grammar, got 2"):
        write_packed([GAMES[0], replace(GAMES[1], domain=DOMAIN + "\n")], tmp_path)


@pytest.mark.parametrize("field", ["task_type", "goal", "problem", "domain", "grammar"])
def test_the_content_hash_covers_what_defines_a_game(field: str) -> None:
    game = GAMES[0]
    assert game.content_hash == replace(game, walkthrough=()).content_hash
    assert game.content_hash != replace(game, **{field: getattr(game, field) + " "}).content_hash


def test_absent_games_are_told(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match="no ALFWorld games of the split 'train'"):
        load_games(tmp_path, "train")
    (tmp_path / "train").mkdir()
    with pytest.raises(AgentRLError, match=r"holds no <task>/<trial>/game\.tw-pddl"):
        load_games(tmp_path, "train")


def test_a_truncated_file_is_told(tmp_path: Path) -> None:
    write_packed(GAMES, tmp_path)
    file = tmp_path / "games_train.jsonl.xz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(AgentRLError, match=r"games_train\.jsonl\.xz: truncated or damaged xz file.*fetch it again"):
        load_games(tmp_path, "train")
    file.write_bytes(b"no xz at all")
    with pytest.raises(AgentRLError, match="truncated or damaged xz file"):
        load_games(tmp_path, "train")


def damaged(tmp_path: Path, line: str) -> Path:
    """A packed file whose second line is `line`."""
    write_packed(GAMES, tmp_path)
    file = tmp_path / "games_train.jsonl.xz"
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    file.write_bytes(lzma.compress("\n".join([lines[0], line]).encode()))
    return file


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"split": "train", ', "line 2: invalid JSON"),
        ("[1]", "line 2: a JSON object is expected, not list"),
        ('{"split": "train"}', "line 2: the key 'task' is missing"),
        ('{"split": 3}', "line 2: the key 'split' holds no str"),
    ],
)
def test_a_damaged_line_is_told_with_its_number(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match=message):
        load_packed(damaged(tmp_path, line), DOMAIN, GRAMMAR)


def test_a_game_that_occurs_twice_is_told(tmp_path: Path) -> None:
    write_packed([GAMES[0], GAMES[0]][:1], tmp_path)
    file = tmp_path / "games_train.jsonl.xz"
    file.write_bytes(lzma.compress(lzma.decompress(file.read_bytes()) * 2))
    with pytest.raises(AgentRLError, match="occurs twice"):
        load_games(tmp_path, "train")


def test_games_of_another_split_in_a_file_are_told(tmp_path: Path) -> None:
    write_packed([small_game(split="valid_seen")], tmp_path)
    (tmp_path / "games_valid_seen.jsonl.xz").rename(tmp_path / "games_train.jsonl.xz")
    with pytest.raises(AgentRLError, match="holds games of the split 'valid_seen'"):
        load_games(tmp_path, "train")


def test_missing_rules_of_a_packed_form_are_told(tmp_path: Path) -> None:
    write_packed(GAMES, tmp_path)
    (tmp_path / "domain.pddl").unlink()
    with pytest.raises(AgentRLError, match=r"domain\.pddl: cannot be read"):
        load_games(tmp_path, "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"solvable": False}, "marked as not solvable; remove it"),
        ({"walkthrough": [1]}, "'walkthrough' holds something that is no command"),
        ({"grammar": "no task"}, "0 sentences 'Your task is to: …' instead of one"),
        ({"grammar": GRAMMAR.replace("move {o} to {r}", "put {o} in/on {r}")}, r"the command of putobject is 'put"),
        ({"pddl_domain": DOMAIN.replace("coolobject", "chillobject")}, "actions differ in chillobject, coolobject"),
        ({"pddl_domain": DOMAIN.replace("(cancontain ?x)", "")}, "lacks the predicates cancontain"),
        ({"grammar": GRAMMAR.replace('feedback :: "Ask."', "")}, "no text for 'help'"),
    ],
)
def test_a_game_this_engine_cannot_play_is_refused_with_the_reason(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AgentRLError, match=rf"^here\.tw-pddl: .*{message}"):
        parse(GAMES[0], **changes)


def test_an_unknown_task_type_is_told() -> None:
    with pytest.raises(AgentRLError, match="unknown task type 'pick_and_place_with_movable_recep'"):
        parse(replace(GAMES[0], task_id="train/pick_and_place_with_movable_recep-Pen-Mug-Shelf-1/trial_1"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": "(define (problem x))"}, "malformed PDDL problem"),
        ({"problem": GAMES[0].problem.replace("(atLocation agent1 loc_bar_0)", "")}, "malformed PDDL problem"),
        (
            {"problem": GAMES[0].problem.replace("(:goal", "(:goal (exists (?x) (opened ?x)) ")},
            "none of ALFWorld's six",
        ),
    ],
)
def test_a_malformed_problem_is_told_with_its_task(changes: dict[str, str], message: str) -> None:
    with pytest.raises(AgentRLError, match=rf"^train/.*{message}"):
        parse_world(replace(GAMES[0], **changes))
