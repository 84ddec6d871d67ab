"""ALFWorld games on disk: the official tree of `game.tw-pddl` files and a packed form of one file per split.

A `game.tw-pddl` is a JSON object with the keys pddl_domain, grammar, pddl_problem, solvable and walkthrough.
Within one release the domain is the same in all games and the grammar differs in the goal sentence alone, so
the packed form keeps `domain.pddl` and `grammar.twl2` (with the goal as `{{GOAL}}`) once, and the rest in the
lines of `games_<split>.jsonl.xz`.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from sys import intern
from typing import Any

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.logic import check_logic
from agentbench_rl.types import AgentRLError

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
GOAL = "{{GOAL}}"
_GOAL_SENTENCE = re.compile(r'(?<=Your task is to: )[^"\n]+(?=")')
_XZ_PRESET = 6


@dataclass(frozen=True, slots=True)
class GameFile:
    """One game; `task_id` is split/task/trial, `grammar` holds `{{GOAL}}` in place of the sentence `goal`."""

    task_id: str
    task_type: str
    split: str
    goal: str
    walkthrough: tuple[str, ...]
    problem: str
    domain: str
    grammar: str

    @property
    def content_hash(self) -> str:
        """SHA-256 of what defines the game's behaviour: its rules, its problem and its goal sentence."""
        content = (_text_hash(self.domain), _text_hash(self.grammar), self.task_type, self.goal, self.problem)
        return hashlib.sha256("\x00".join(content).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The content of the official `game.tw-pddl`."""
        return {
            "pddl_domain": self.domain,
            "grammar": self.grammar.replace(GOAL, self.goal),
            "pddl_problem": self.problem,
            "solvable": True,
            "walkthrough": list(self.walkthrough),
        }


def parse_game_json(text: str, *, origin: str, task_id: str, split: str) -> GameFile:
    """Parse the content of an official `game.tw-pddl`.

    `origin` names the file in messages; the task type is the first part of the task directory's name.
    Raises AgentRLError for invalid JSON, missing keys, an unsolvable game, or rules other than those of
    ALFWorld's released games.
    """
    data = _json_object(text, origin)
    if _field(data, "solvable", bool, origin) is not True:
        raise AgentRLError(f"{origin}: the game is marked as not solvable; remove it from the split.")
    grammar = _field(data, "grammar", str, origin)
    goals = _GOAL_SENTENCE.findall(grammar)
    if len(goals) != 1:
        raise AgentRLError(
            f"{origin}: the grammar has {len(goals)} sentences 'Your task is to: …' instead of one; "
            "fetch the game again."
        )
    return _game(
        task_id=task_id,
        task_type=task_id.split("/")[1].split("-", 1)[0],
        split=split,
        goal=goals[0],
        walkthrough=_walkthrough(data, origin),
        problem=_field(data, "pddl_problem", str, origin),
        domain=_field(data, "pddl_domain", str, origin),
        grammar=_GOAL_SENTENCE.sub(GOAL, grammar),
        origin=origin,
    )


def load_games(path: Path, split: str) -> list[GameFile]:
    """Games of a split, sorted by task_id, from the packed form or else the official tree under `path`.

    Raises AgentRLError when neither is there or a file is damaged.
    """
    packed = path / f"games_{split}.jsonl.xz"
    if packed.is_file():
        games = load_packed(packed, _read(path / "domain.pddl"), _read(path / "grammar.twl2"))
        strangers = sorted({game.split for game in games} - {split})
        if strangers:
            raise AgentRLError(f"{packed}: holds games of the split {strangers[0]!r}; expected only {split!r}.")
        return games
    for root in (path / "json_2.1.1" / split, path / split):
        if root.is_dir():
            return _load_tree(root, split)
    raise AgentRLError(
        f"{path}: no ALFWorld games of the split {split!r}: neither games_{split}.jsonl.xz nor "
        f"json_2.1.1/{split}/<task>/<trial>/game.tw-pddl; fetch the games or generate some."
    )


def available_splits(path: Path) -> tuple[str, ...]:
    """Names of the splits that `load_games` finds under `path`, in the fixed order of `SPLITS`."""
    return tuple(
        split
        for split in SPLITS
        if (path / f"games_{split}.jsonl.xz").is_file()
        or (path / "json_2.1.1" / split).is_dir()
        or (path / split).is_dir()
    )


def load_packed(file: Path, domain: str, grammar: str) -> list[GameFile]:
    """Games of one packed file, sorted by task_id; raises AgentRLError naming a damaged line."""
    games = [
        _packed_game(line, domain, grammar, origin=f"{file}, line {number}")
        for number, line in enumerate(_lines(file), start=1)
    ]
    return _sorted(games, str(file))


def write_packed(games: Sequence[GameFile], directory: Path) -> None:
    """Write the packed form; equal games give equal bytes.

    Raises AgentRLError when the games do not share one domain and one grammar.
    """
    logics = {(game.domain, game.grammar) for game in games}
    if len(logics) != 1:
        raise AgentRLError(f"{directory}: packing needs games of one domain and grammar, got {len(logics)}.")
    (domain, grammar) = logics.pop()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "domain.pddl").write_text(domain, encoding="utf-8", newline="")
    (directory / "grammar.twl2").write_text(grammar, encoding="utf-8", newline="")
    for split in sorted({game.split for game in games}):
        lines = [_packed_line(game) for game in _sorted(games, str(directory)) if game.split == split]
        data = lzma.compress("".join(lines).encode(), preset=_XZ_PRESET)
        (directory / f"games_{split}.jsonl.xz").write_bytes(data)


@lru_cache(maxsize=64)
def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _load_tree(root: Path, split: str) -> list[GameFile]:
    games = [
        parse_game_json(
            _read(file), origin=str(file), task_id=f"{split}/{file.parts[-3]}/{file.parts[-2]}", split=split
        )
        for file in root.glob("*/*/game.tw-pddl")
    ]
    if not games:
        raise AgentRLError(f"{root}: holds no <task>/<trial>/game.tw-pddl; fetch the games again.")
    return _sorted(games, str(root))


def _packed_game(line: str, domain: str, grammar: str, *, origin: str) -> GameFile:
    data = _json_object(line, origin)
    split, task, trial = (_field(data, key, str, origin) for key in ("split", "task", "trial"))
    return _game(
        task_id=f"{split}/{task}/{trial}",
        task_type=_field(data, "task_type", str, origin),
        split=split,
        goal=_field(data, "goal", str, origin),
        walkthrough=_walkthrough(data, origin),
        problem=_field(data, "pddl_problem", str, origin),
        domain=domain,
        grammar=grammar,
        origin=origin,
    )


def _packed_line(game: GameFile) -> str:
    split, task, trial = game.task_id.split("/")
    record = {
        "split": split,
        "task": task,
        "trial": trial,
        "task_type": game.task_type,
        "goal": game.goal,
        "walkthrough": game.walkthrough,
        "pddl_problem": game.problem,
    }
    return json.dumps(record) + "\n"


def _game(*, origin: str, domain: str, grammar: str, task_type: str, split: str, **rest: Any) -> GameFile:
    if task_type not in TASK_TYPES:
        raise AgentRLError(f"{origin}: unknown task type {task_type!r}; known are {', '.join(TASK_TYPES)}.")
    check_logic(domain, grammar, origin)
    return GameFile(
        task_type=intern(task_type),
        split=intern(split),
        domain=intern(domain),
        grammar=intern(grammar),
        **rest,
    )


def _sorted(games: Sequence[GameFile], origin: str) -> list[GameFile]:
    ordered = sorted(games, key=lambda game: game.task_id)
    for first, second in pairwise(ordered):
        if first.task_id == second.task_id:
            raise AgentRLError(f"{origin}: the game {first.task_id!r} occurs twice; remove one of them.")
    return ordered


def _lines(file: Path) -> Iterator[str]:
    try:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            yield from lines
    except OSError as error:
        raise AgentRLError(f"{file}: cannot be read: {error}; check the path.") from error
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise AgentRLError(f"{file}: truncated or damaged xz file ({error}); fetch it again.") from error


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise AgentRLError(f"{file}: cannot be read: {error}; fetch the games again.") from error
    except UnicodeDecodeError as error:
        raise AgentRLError(f"{file}: is not UTF-8 text ({error}); fetch it again.") from error


def _json_object(text: str, origin: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise AgentRLError(f"{origin}: invalid JSON ({error}); fetch the file again.") from error
    if not isinstance(data, dict):
        raise AgentRLError(f"{origin}: a JSON object is expected, not {type(data).__name__}.")
    return data


def _field(data: dict[str, Any], key: str, kind: type, origin: str) -> Any:
    if key not in data:
        raise AgentRLError(f"{origin}: the key {key!r} is missing; fetch the file again.")
    if not isinstance(data[key], kind):
        raise AgentRLError(f"{origin}: the key {key!r} holds no {kind.__name__}; fetch the file again.")
    return data[key]


def _walkthrough(data: dict[str, Any], origin: str) -> tuple[str, ...]:
    commands = _field(data, "walkthrough", list, origin)
    if not all(isinstance(command, str) for command in commands):
        raise AgentRLError(f"{origin}: the key 'walkthrough' holds something that is no command.")
    return tuple(commands)
