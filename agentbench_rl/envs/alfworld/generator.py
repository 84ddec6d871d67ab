"""Seeded games in the format of ALFWorld: six task types in generated households, solvable by construction.

A game is a pure function of (seed, split, index) and the sizes. No two splits share a game and no unseen
floor plan occurs in training: seen and unseen plans differ in the parity of their signature's hash (see
`household`), and the games of the seen plans are dealt to train and valid_seen by the hash of *their*
signature: the goal and which object types lie in which receptacle types.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import TypedDict, Unpack

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.envs.alfworld.expert import plan
from agentbench_rl.envs.alfworld.gamefile import GameFile
from agentbench_rl.envs.alfworld.household import (
    ROOMS,
    FloorPlan,
    Item,
    digest,
    floor_plan,
    place_objects,
    seeded,
    tables,
)
from agentbench_rl.envs.alfworld.problem import (
    CLEAN,
    COOL,
    HEAT,
    LIGHT,
    SIMPLE,
    TREATMENTS,
    TWO,
    problem_text,
)
from agentbench_rl.envs.alfworld.world import parse_world
from agentbench_rl.types import AgentRLError

SPLITS = ("train", "valid_seen", "valid_unseen")
#: The smallest sizes that hold every task: the appliances of a kitchen, and the goal's objects.
SMALLEST_ROOM, FEWEST_OBJECTS = 5, 4
_SENTENCES = {
    LIGHT: ("look at {o} under the {r}.", "examine the {o} with the {r}."),
    SIMPLE: ("put a {o} in {r}.", "put some {o} on {r}."),
    CLEAN: ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    COOL: ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
    HEAT: ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    TWO: ("put two {o} in {r}.", "find two {o} and put them in {r}."),
}
_LAMP = "DeskLamp"
#: Receptacles that no goal names.
_NO_GOAL = frozenset({"BathtubBasin", "HandTowelHolder", "SinkBasin", "TowelHolder"})
_ATTEMPTS = 1000
#: Games that repeat an earlier one are replaced by games from this index on, times the number of task types.
_REPLACEMENTS = 100_000


@dataclass(frozen=True, slots=True)
class _Draft:
    """A game before it is written out; `parent` is the type of receptacle (or lamp) that the goal names."""

    task_type: str
    target: str
    parent: str
    plan: FloorPlan
    items: tuple[Item, ...]

    @property
    def signature(self) -> int:
        placed = Counter((item.type, item.receptacle.type) for item in self.items)
        room = sorted(receptacle.type for receptacle in self.plan.receptacles)
        return digest((self.task_type, self.target, self.parent, room, sorted(placed.items())))


class Sizes(TypedDict):
    """What `generate` may draw from.

    `receptacles` and `objects` bound the numbers per household (both ends included). `floor_plans` is the
    number of plans per room that train and valid_seen share; valid_unseen has as many others. Of `task_types`
    each has an equal share.
    """

    receptacles: tuple[int, int]
    objects: tuple[int, int]
    floor_plans: int
    task_types: Sequence[str]


def generate(seed: int, split: str, index: int, **sizes: Unpack[Sizes]) -> GameFile:
    """Generate one game, of the type `task_types[index % len(task_types)]`; equal arguments give equal games.

    Raises AgentRLError for arguments that no household satisfies.
    """
    _check(split, sizes)
    return _write(_draft(seed, split, index, sizes), seed, split, index)


def generate_split(seed: int, split: str, count: int, **sizes: Unpack[Sizes]) -> list[GameFile]:
    """Generate `count` different games with balanced task types; a smaller count gives the first of them.

    Raises AgentRLError for arguments that no household satisfies or that allow too few different games.
    """
    _check(split, sizes)
    stride = _REPLACEMENTS * len(sizes["task_types"])
    games, seen = [], set()
    for slot in range(count):
        # A repeated game is replaced by one of a later index and the same task type.
        for index in range(slot, slot + _ATTEMPTS * stride, stride):
            draft = _draft(seed, split, index, sizes)
            if draft.signature not in seen:
                break
        else:
            raise AgentRLError(
                f"{split}: only {slot} different games found, {count} were asked for; "
                "allow more receptacles, objects or floor plans."
            )
        seen.add(draft.signature)
        games.append(_write(draft, seed, split, index))
    return games


def _check(split: str, sizes: Sizes) -> None:
    if split not in SPLITS:
        raise AgentRLError(f"unknown split {split!r}; generated games have {', '.join(SPLITS)}.")
    unknown = sorted(set(sizes["task_types"]) - set(TASK_TYPES))
    if unknown or not sizes["task_types"]:
        raise AgentRLError(f"task_types: unknown {unknown}; choose from {', '.join(TASK_TYPES)}.")
    for name, (low, high), least in (
        ("receptacles", sizes["receptacles"], SMALLEST_ROOM),
        ("objects", sizes["objects"], FEWEST_OBJECTS),
    ):
        if not least <= low <= high:
            raise AgentRLError(f"{name}: needs {least} <= smallest <= largest, got ({low}, {high}).")
    if sizes["floor_plans"] < 1:
        raise AgentRLError(f"floor_plans: at least 1 per room is needed, got {sizes['floor_plans']}.")


def _draft(seed: int, split: str, index: int, sizes: Sizes) -> _Draft:
    rng = seeded(seed, split, index)
    task_type = sizes["task_types"][index % len(sizes["task_types"])]
    unseen = split == "valid_unseen"
    for _ in range(_ATTEMPTS):
        room = rng.choice(_rooms(task_type))
        number = rng.randint(1, sizes["floor_plans"]) + (sizes["floor_plans"] if unseen else 0)
        plan_ = floor_plan(seed, room, number, sizes["receptacles"], unseen=unseen)
        goals = _goals(plan_, task_type)
        if not goals:
            continue
        target = rng.choice(list(goals))
        parent = rng.choice(goals[target])
        draft = _populate(rng, task_type, target, parent, plan_, rng.randint(*sizes["objects"]))
        if unseen or (draft.signature % 4 == 0) == (split == "valid_seen"):
            return draft
    raise AgentRLError(f"{split}: no {task_type} found; allow more receptacles, objects or floor plans.")


def _rooms(task_type: str) -> Sequence[str]:
    if task_type == LIGHT:
        return ("living", "bedroom")
    if task_type == CLEAN:
        return ("kitchen", "kitchen", "bathroom")
    return ("kitchen",) if task_type in TREATMENTS else ROOMS


@lru_cache(maxsize=4096)
def _goals(plan_: FloorPlan, task_type: str) -> dict[str, list[str]]:
    """Object types that a goal in this plan may name, each with the types of receptacle (or lamp)."""
    facts = tables()
    kinds = [kind for kind in plan_.options if kind != _LAMP]
    if task_type == LIGHT:
        return {kind: [_LAMP] for kind in kinds} if _LAMP in plan_.options else {}
    appliance = None
    if task_type in TREATMENTS:
        able, _, appliance = TREATMENTS[task_type]
        kinds = [kind for kind in kinds if kind in facts["properties"][able]]
    parents = sorted(plan_.types - _NO_GOAL - {appliance})
    goals = {}
    for kind in kinds:
        fitting = [parent for parent in parents if kind in facts["contains"].get(parent, ())]
        if task_type in (SIMPLE, TWO):
            fitting = [parent for parent in fitting if plan_.options[kind].keys() - {parent}]
        if fitting:
            goals[kind] = fitting
    return goals


def _populate(rng: random.Random, task_type: str, target: str, parent: str, plan_: FloorPlan, count: int) -> _Draft:
    wanted = [target] * (rng.randint(2, 3) if task_type == TWO else rng.randint(1, 3))
    if task_type == LIGHT:
        wanted.append(_LAMP)
    forbidden = (target, parent) if task_type in (SIMPLE, TWO) else None
    items = place_objects(rng, plan_, wanted, max(count, len(wanted)), forbidden)
    return _Draft(task_type, target, parent, plan_, tuple(items))


def _write(draft: _Draft, seed: int, split: str, index: int) -> GameFile:
    sentence = _SENTENCES[draft.task_type][draft.signature // 4 % 2]
    trial = f"trial_{seed}_{index:05d}"
    task = f"{draft.task_type}-{draft.target}-None-{draft.parent}-{draft.plan.number}"
    game = GameFile(
        task_id=f"{split}/{task}/{trial}",
        task_type=draft.task_type,
        split=split,
        goal=sentence.format(o=draft.target.lower(), r=draft.parent.lower()),
        walkthrough=(),
        problem=problem_text(f"plan_{trial}", draft.task_type, draft.target, draft.parent, draft.plan, draft.items),
        domain=_rules("domain.pddl"),
        grammar=_rules("grammar.twl2"),
    )
    return replace(game, walkthrough=_walkthrough(game))


def _walkthrough(game: GameFile) -> tuple[str, ...]:
    engine = AlfworldEngine.at_start(parse_world(game))
    commands = plan(engine)
    for command in commands or ():
        result = engine.step(command)
    if not commands or not result.success:
        raise AssertionError(f"{game.task_id}: the generated game is not won by its walkthrough {commands}.")
    return tuple(commands)


@cache
def _rules(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
