"""Rooms, floor plans and objects of ALFRED-like households (Shridhar et al. 2020, arXiv:1912.01734).

They are drawn from the tables of `household.toml`. A floor plan is a room with its receptacles; two plans
with the same numbers of receptacles per type have the same *signature*, and the parity of its hash decides
whether the plan may be seen in training, so that no seen plan ever equals an unseen one, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from agentbench_rl.types import AgentRLError

ROOMS = ("kitchen", "living", "bedroom", "bathroom")
#: First plan number of each room.
ROOM_NUMBERS = {"kitchen": 0, "living": 2000, "bedroom": 3000, "bathroom": 4000}
#: Receptacles whose ids carry the part of a larger piece of furniture.
_PARTS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
_STACKABLE = ("Cabinet", "Drawer", "Shelf", "StoveBurner")
_SHARED_LOCATION = 0.15
_GRID = 33
_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place for objects; `x`, `y` and `z` are centimetres, several receptacles may share one location."""

    id: str
    type: str
    location: str
    x: int
    y: int
    z: int


@dataclass(frozen=True, slots=True, eq=False)
class FloorPlan:
    """A room and what stands in it; the agent starts at `start`, where no receptacle is.

    `options` holds, per object type that finds a place here, the receptacle types it usually lies in, with
    weights.
    """

    number: int
    start: str
    locations: tuple[str, ...]
    receptacles: tuple[Receptacle, ...]
    types: frozenset[str]
    options: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Item:
    """An object and the receptacle it lies in at the start."""

    id: str
    type: str
    receptacle: Receptacle


@cache
def tables() -> dict[str, Any]:
    """The tables of `household.toml`: rooms, properties and `contains`, as nested dictionaries."""
    raw: dict[str, Any] = tomllib.loads((files(__package__) / "household.toml").read_text(encoding="utf-8"))
    for key in ("properties", "contains"):
        raw[key] = {name: frozenset(words.split()) for name, words in raw[key].items()}
    for room in ROOMS:
        raw[room]["objects"] = {
            name: {place: int(weight) for place, weight in (word.split(":") for word in places.split())}
            for name, places in raw[room]["objects"].items()
        }
    return raw


def seeded(*parts: object) -> random.Random:
    """A generator whose state is the SHA-256 of `parts`."""
    return random.Random(digest(parts))


def digest(value: object) -> int:
    """SHA-256 of a value's representation, as an integer."""
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest())


@lru_cache(maxsize=1024)
def floor_plan(seed: int, room: str, index: int, receptacles: tuple[int, int], *, unseen: bool) -> FloorPlan:
    """Draw the floor plan `index` of a room; `receptacles` bounds their number (both ends included).

    Raises AgentRLError when the bounds leave no plan of the asked kind.
    """
    rng = seeded(seed, "plan", room, index, receptacles, unseen)
    for _ in range(_ATTEMPTS):
        types = _receptacle_types(rng, room, rng.randint(*receptacles))
        if digest((room, sorted(types))) % 2 == int(unseen):
            return _furnish(rng, room, ROOM_NUMBERS[room] + index, types)
    kind = "unseen" if unseen else "seen"
    raise AgentRLError(f"receptacles: no {kind} {room} found with {receptacles} of them; widen the range.")


def place_objects(
    rng: random.Random, plan: FloorPlan, wanted: list[str], count: int, forbidden: tuple[str, str] | None
) -> list[Item]:
    """Place the `wanted` object types and then others, `count` objects in all.

    `forbidden` is an (object type, receptacle type) pair that must not occur at the start; other objects are
    never of the first wanted type, so the task decides how many of those there are.
    """
    others = {kind: 1.0 for kind in plan.options if kind != wanted[0]}
    types = list(wanted)
    while len(types) < count:
        (kind,) = rng.choices(list(others), list(others.values()))
        others[kind] /= 4
        types.append(kind)
    by_type: dict[str, list[Receptacle]] = {}
    for receptacle in plan.receptacles:
        by_type.setdefault(receptacle.type, []).append(receptacle)
    taken: set[str] = set()
    items = []
    for kind in types:
        options = {where: w for where, w in plan.options[kind].items() if (kind, where) != forbidden}
        (where,) = rng.choices(list(options), list(options.values()))
        items.append(_item(rng, kind, rng.choice(by_type[where]), taken))
    return items


def _receptacle_types(rng: random.Random, room: str, count: int) -> list[str]:
    table: dict[str, list[float]] = tables()[room]["receptacles"]
    numbers = Counter({kind: int(always) for kind, (always, _, _) in table.items()})
    while numbers.total() < count:
        # Dividing by the number so far keeps a small room varied and a large one in the usual proportions.
        weights = {
            kind: usual / (1 + numbers[kind]) for kind, (_, usual, most) in table.items() if numbers[kind] < most
        }
        if not weights:
            raise AgentRLError(f"receptacles: a {room} holds at most {numbers.total()}, not {count}.")
        numbers[rng.choices(list(weights), list(weights.values()))[0]] += 1
    return sorted(numbers.elements())


def _furnish(rng: random.Random, room: str, number: int, types: list[str]) -> FloorPlan:
    cells = rng.sample(range(_GRID * _GRID), len(types) + 1)
    receptacles: list[Receptacle] = []
    for kind, cell in zip(types, cells, strict=False):
        x, z = (25 * (c - _GRID // 2) + rng.randint(0, 24) for c in divmod(cell, _GRID))
        y = rng.randint(0, 150)
        location = _location(cell, rng)
        if receptacles and kind == receptacles[-1].type in _STACKABLE and rng.random() < _SHARED_LOCATION:
            location = receptacles[-1].location
        receptacles.append(Receptacle(_identifier(kind, x, y, z), kind, location, x, y, z))
    start = _location(cells[-1], rng)
    locations = tuple(dict.fromkeys([r.location for r in receptacles] + [start]))
    present = frozenset(types)
    options = {
        kind: fitting
        for kind, places in tables()[room]["objects"].items()
        if (fitting := {place: weight for place, weight in places.items() if place in present})
    }
    return FloorPlan(number, start, locations, tuple(receptacles), present, options)


def _item(rng: random.Random, kind: str, receptacle: Receptacle, taken: set[str]) -> Item:
    while True:
        x, z = receptacle.x + rng.randint(-40, 40), receptacle.z + rng.randint(-40, 40)
        identifier = _identifier(kind, x, receptacle.y + rng.randint(1, 9), z)
        if identifier not in taken:
            taken.add(identifier)
            return Item(identifier, kind, receptacle)


def _identifier(kind: str, x: int, y: int, z: int) -> str:
    parts = [_PARTS.get(kind, kind), _metres(x), _metres(y), _metres(z)]
    return "_bar_".join([*parts, kind] if kind in _PARTS else parts)


def _metres(centimetres: int) -> str:
    sign = "_minus_" if centimetres < 0 else "_plus_" if centimetres else ""
    whole, rest = divmod(abs(centimetres), 100)
    return f"{sign}{whole:02d}_dot_{rest:02d}"


def _location(cell: int, rng: random.Random) -> str:
    x, z = (c - _GRID // 2 for c in divmod(cell, _GRID))
    parts: Iterable[int] = (x, z, rng.randint(0, 3), rng.choice((-30, 0, 15, 30, 45, 60)))
    return "_bar_".join(["loc", *(f"_minus_{-part}" if part < 0 else str(part) for part in parts)])
