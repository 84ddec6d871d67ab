"""One parsed ALFWorld game (`World`, immutable) and the value of a moment in it (`State`).

Objects, receptacles and locations are numbered in the order of their sorted lower-case ids, which is also the
order in which TextWorld lists them. Their names count backwards in that order: of two beds the first is `bed 2`,
the second `bed 1`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from agentbench_rl.envs.alfworld.gamefile import GameFile
from agentbench_rl.envs.alfworld.goal import TREATABLE, Goal, parse_goal
from agentbench_rl.envs.alfworld.logic import help_text
from agentbench_rl.types import AgentRLError


class State(NamedTuple):
    """Hidden state of a game; a value that is never changed in place. Numbers index the `World`'s tuples."""

    location: int
    #: The object in hand.
    holding: int | None
    #: Per receptacle, its objects in ascending order; an object may be in two receptacles at once.
    contents: tuple[tuple[int, ...], ...]
    #: Per object, the locations where it is (PDDL's objectAtLocation), in ascending order.
    places: tuple[tuple[int, ...], ...]
    #: Opened receptacles; then the objects that were cleaned, heated, cooled, sliced, switched on.
    opened: frozenset[int]
    clean: frozenset[int]
    hot: frozenset[int]
    cool: frozenset[int]
    sliced: frozenset[int]
    toggled: frozenset[int]
    #: (object, receptacle) that a `take` has separated and no `move` rejoined; `look` reports such objects.
    left: frozenset[tuple[int, int]]


#: A transition function with its arguments after world and state; see `actions`.
Action = tuple[Callable[..., tuple[State, str]], tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What never changes in a game. Sets and tuples of numbers refer to objects, receptacles or locations."""

    task_id: str
    task_type: str
    #: The goal's sentence, as the task text shows it, and its parsed meaning.
    sentence: str
    goal: Goal
    #: Answer to `help`.
    help: str
    #: Names as the agent sees them, such as "mug 1"; types such as "mugtype" ("" for a thing without type).
    object_names: tuple[str, ...]
    object_types: tuple[str, ...]
    receptacle_names: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    #: Location of each receptacle; receptacles at each location, in ascending order.
    location_of: tuple[int, ...]
    receptacles_at: tuple[tuple[int, ...], ...]
    #: Receptacles that can be opened.
    openable: frozenset[int]
    #: Objects by what can be done with them.
    pickupable: frozenset[int]
    cleanable: frozenset[int]
    heatable: frozenset[int]
    coolable: frozenset[int]
    toggleable: frozenset[int]
    sliceable: frozenset[int]
    #: Objects that hold others (a bowl), with what is in them; this never changes.
    inner: dict[int, tuple[int, ...]]
    #: Per receptacle, the objects that may be put there.
    accepts: tuple[frozenset[int], ...]
    #: Objects, receptacles and lamps that can satisfy the goal.
    goal_objects: frozenset[int]
    goal_receptacles: tuple[int, ...]
    goal_lamps: frozenset[int]
    start: State
    #: Per location, the commands that are always possible there (filled by `actions.commands`).
    standing_commands: dict[int, dict[str, Action]] = field(default_factory=dict, repr=False)


def parse_world(game: GameFile) -> World:
    """Parse a game's PDDL problem; raises AgentRLError when it is malformed or its goal is unknown."""
    try:
        return _parse(game)
    except (KeyError, ValueError, IndexError) as error:
        raise AgentRLError(
            f"{game.task_id}: malformed PDDL problem ({type(error).__name__}: {error}); fetch the game again."
        ) from error


_FACT = re.compile(r"\(([\w-]+)((?:\s+[^()\s]+)+)\s*\)")
_OBJECT = re.compile(r"(\S+)\s+-\s+(object|receptacle)\b")


class _Facts:
    """Initial facts by lower-case predicate, with numbers for ids."""

    def __init__(self, problem: str) -> None:
        self.arguments: dict[str, list[list[str]]] = defaultdict(list)
        for predicate, arguments in _FACT.findall(problem, problem.index("(:init"), problem.index("(:goal")):
            self.arguments[predicate].append(arguments.split())
        declared = dict(_OBJECT.findall(problem, problem.index("(:objects"), problem.index("(:init")))
        mentioned = {name for rows in self.arguments.values() for row in rows for name in row}
        ids = sorted(name for name in mentioned if "_bar_" in name and name in declared)
        self.names = _names(ids)
        self.receptacles = [name for name in ids if declared[name] == "receptacle"]
        self.objects = [name for name in ids if declared[name] == "object"]
        self.locations = sorted(
            {row[1] for row in self.arguments["receptacleatlocation"]}
            | {row[1] for row in self.arguments["objectatlocation"]}
            | {row[1] for row in self.arguments["atlocation"]}
        )
        self.number = {
            name: index
            for group in (self.objects, self.receptacles, self.locations)
            for index, name in enumerate(group)
        }

    def marked(self, predicate: str) -> frozenset[int]:
        """Numbers of what a unary predicate holds for."""
        return frozenset(self.number[row[0]] for row in self.arguments[predicate])

    def function(self, predicate: str, ids: list[str], default: str | None = None) -> tuple[str, ...]:
        """Per id, the one value a binary predicate gives it, or else `default`."""
        rows = self.arguments[predicate]
        values = {row[0]: row[1] for row in rows}
        if len(values) != len(rows):
            raise ValueError(f"{predicate} gives two values to one id")
        return tuple(values[name] if default is None else values.get(name, default) for name in ids)

    def relation(self, predicate: str, ids: list[str], *, keyed_by: int) -> tuple[tuple[int, ...], ...]:
        """Per id in argument `keyed_by`, the numbers of the other argument, ascending."""
        found: dict[str, set[int]] = {name: set() for name in ids}
        for row in self.arguments[predicate]:
            found[row[keyed_by]].add(self.number[row[1 - keyed_by]])
        return tuple(tuple(sorted(found[name])) for name in ids)


def _names(ids: list[str]) -> dict[str, str]:
    """TextWorld's names of sorted ids (alfworld's Demangler): numbers run backwards within a kind."""
    kinds = {name: name.split("_bar_", 1)[0] + ("basin" if "basin" in name else "") for name in ids}
    remaining = Counter(kinds.values())
    names = {}
    for name, kind in kinds.items():
        names[name] = f"{kind} {remaining[kind]}"
        remaining[kind] -= 1
    return names


def _parse(game: GameFile) -> World:
    problem = game.problem.lower()
    facts = _Facts(problem)
    goal = parse_goal(problem[problem.index("(:goal") :], game.task_id)
    # Some games name the pieces of a thing that broke (a cracked egg): they have no type and are nowhere.
    object_types = facts.function("objecttype", facts.objects, default="")
    receptacle_types = facts.function("receptacletype", facts.receptacles)
    location_ids = facts.function("receptacleatlocation", facts.receptacles)
    receptacle_objects = facts.marked("isreceptacleobject")
    inner = facts.relation("inreceptacleobject", facts.objects, keyed_by=1)
    treatable = {treatment: facts.marked(predicate) for treatment, predicate in TREATABLE.items()}
    wanted = frozenset(i for i, kind in enumerate(object_types) if kind == goal.object_type)
    lamps = frozenset(i for i, kind in enumerate(object_types) if kind == goal.lamp_type)
    return World(
        task_id=game.task_id,
        task_type=game.task_type,
        sentence=game.goal,
        goal=goal,
        help=help_text(game.grammar),
        object_names=tuple(facts.names[name] for name in facts.objects),
        object_types=object_types,
        receptacle_names=tuple(facts.names[name] for name in facts.receptacles),
        receptacle_types=receptacle_types,
        location_of=tuple(facts.number[name] for name in location_ids),
        receptacles_at=facts.relation("receptacleatlocation", facts.locations, keyed_by=1),
        openable=facts.marked("openable"),
        pickupable=facts.marked("pickupable"),
        cleanable=facts.marked("cleanable"),
        heatable=facts.marked("heatable"),
        coolable=facts.marked("coolable"),
        toggleable=facts.marked("toggleable"),
        sliceable=facts.marked("sliceable"),
        inner={index: inner[index] for index in receptacle_objects},
        accepts=_accepts(facts, receptacle_types, object_types),
        goal_objects=wanted & treatable[goal.treatment] if goal.treatment else wanted,
        goal_receptacles=tuple(i for i, kind in enumerate(receptacle_types) if kind == goal.receptacle_type),
        goal_lamps=lamps & facts.marked("toggleable"),
        start=_start(facts),
    )


def _accepts(
    facts: _Facts, receptacle_types: tuple[str, ...], object_types: tuple[str, ...]
) -> tuple[frozenset[int], ...]:
    by_type: dict[str, set[str]] = defaultdict(set)
    for receptacle_type, object_type in facts.arguments["cancontain"]:
        by_type[receptacle_type].add(object_type)
    return tuple(
        frozenset(index for index, object_type in enumerate(object_types) if object_type in by_type[kind])
        for kind in receptacle_types
    )


def _start(facts: _Facts) -> State:
    (agent,) = facts.arguments["atlocation"]
    if facts.arguments["holds"]:
        raise ValueError("the agent holds something at the start")
    return State(
        location=facts.number[agent[1]],
        holding=None,
        contents=facts.relation("inreceptacle", facts.receptacles, keyed_by=1),
        places=facts.relation("objectatlocation", facts.objects, keyed_by=0),
        opened=facts.marked("opened"),
        clean=facts.marked("isclean"),
        hot=facts.marked("ishot"),
        cool=facts.marked("iscool"),
        sliced=facts.marked("issliced"),
        toggled=facts.marked("istoggled"),
        left=frozenset(),
    )
