"""A planner with full information: from any reachable state to the goal by the shortest of some errands.

An errand fetches an object of the goal (after putting down a wrong one), treats it at its appliance where the
goal says so, and brings it to a goal receptacle or to a lamp. All choices of object and receptacle are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentbench_rl.envs.alfworld.world import State, World

if TYPE_CHECKING:
    from agentbench_rl.envs.alfworld.engine import AlfworldEngine

_TREATMENTS = {
    "clean": ("clean", ("sinkbasintype", "sinktype")),
    "hot": ("heat", ("microwavetype",)),
    "cool": ("cool", ("fridgetype",)),
}
_Source = tuple[int, int | None]


def plan(engine: AlfworldEngine) -> list[str] | None:
    """Commands that win from the engine's state; empty when it is won, None when it cannot be won."""
    if engine.process_reward() == 1.0:
        return []
    world, state = engine.world, engine.state
    errands = _to_lamps if world.goal.lamp_type else _to_receptacles
    return min((errand.commands for errand in errands(world, state)), key=len, default=None)


class _StuckError(Exception):
    """The errand cannot be completed."""


class _Errand:
    """Commands so far, and where they lead."""

    def __init__(self, world: World, state: State) -> None:
        self.world, self.location, self.holding = world, state.location, state.holding
        self.opened = set(state.opened)
        self.commands: list[str] = []

    def visit(self, receptacle: int, *, inside: bool) -> None:
        """Go to a receptacle and, to reach its inside, open it."""
        name = self.world.receptacle_names[receptacle]
        if self.world.location_of[receptacle] != self.location:
            self.location = self.world.location_of[receptacle]
            self.commands.append(f"go to {name}")
        if inside and receptacle in self.world.openable and receptacle not in self.opened:
            self.opened.add(receptacle)
            self.commands.append(f"open {name}")

    def fetch(self, item: int, source: int | None) -> None:
        """Have `item` in hand, from the receptacle `source` (None: it is held already)."""
        if self.holding == item:
            return
        if self.holding is not None:
            self._put_down()
        assert source is not None
        self.visit(source, inside=True)
        names = self.world.object_names[item], self.world.receptacle_names[source]
        self.commands.append("take {} from {}".format(*names))
        self.holding = item

    def treat(self, item: int, treatment: str) -> None:
        """Clean, heat or cool the item in hand at the cheapest appliance."""
        verb, kinds = _TREATMENTS[treatment]
        appliances = [r for r, kind in enumerate(self.world.receptacle_types) if kind in kinds]
        if not appliances:
            raise _StuckError
        appliance = min(appliances, key=lambda r: self.world.location_of[r] != self.location)
        self.visit(appliance, inside=False)
        names = self.world.object_names[item], self.world.receptacle_names[appliance]
        self.commands.append("{} {} with {}".format(verb, *names))

    def put(self, item: int, receptacle: int) -> None:
        """Put the item in hand into a receptacle that accepts it."""
        self.visit(receptacle, inside=True)
        names = self.world.object_names[item], self.world.receptacle_names[receptacle]
        self.commands.append("move {} to {}".format(*names))
        self.holding = None

    def _put_down(self) -> None:
        held = self.holding
        assert held is not None
        fitting = [r for r, accepted in enumerate(self.world.accepts) if held in accepted]
        if not fitting:
            raise _StuckError
        self.put(held, min(fitting, key=self._distance))

    def _distance(self, receptacle: int) -> int:
        shut = receptacle in self.world.openable and receptacle not in self.opened
        return 2 * (self.world.location_of[receptacle] != self.location) + shut


def _to_lamps(world: World, state: State) -> Iterator[_Errand]:
    for item, source in _sources(world, state):
        for receptacle, contents in enumerate(state.contents):
            for lamp in world.goal_lamps.intersection(contents):
                errand = _Errand(world, state)
                try:
                    errand.fetch(item, source)
                except _StuckError:
                    continue
                errand.visit(receptacle, inside=False)
                if lamp not in state.toggled:
                    errand.commands.append(f"use {world.object_names[lamp]}")
                yield errand


def _to_receptacles(world: World, state: State) -> Iterator[_Errand]:
    treatment = world.goal.treatment
    treated: frozenset[int] = getattr(state, treatment) if treatment else world.goal_objects
    sources = list(_sources(world, state))
    for receptacle in world.goal_receptacles:
        placed = treated.intersection(state.contents[receptacle], world.goal_objects)
        single: dict[int, _Errand] = {}
        routes: dict[int, int | None] = {}
        for item, source in sources:
            if item in placed or item not in world.accepts[receptacle]:
                continue
            errand = _errand(world, state, [(item, source)], receptacle, treated)
            if errand and (item not in single or len(errand.commands) < len(single[item].commands)):
                single[item], routes[item] = errand, source
        missing = world.goal.count - len(placed)
        nearest = sorted(single, key=lambda item: len(single[item].commands))[:missing]
        if len(nearest) < missing:
            continue
        chosen = _errand(world, state, [(item, routes[item]) for item in nearest], receptacle, treated)
        if chosen:
            yield chosen


def _errand(
    world: World, state: State, items: list[_Source], receptacle: int, treated: frozenset[int]
) -> _Errand | None:
    errand = _Errand(world, state)
    try:
        for item, source in items:
            errand.fetch(item, source)
            if world.goal.treatment and item not in treated:
                errand.treat(item, world.goal.treatment)
            errand.put(item, receptacle)
    except _StuckError:
        return None
    return errand


def _sources(world: World, state: State) -> Iterator[_Source]:
    """Goal objects, each with the receptacles it can be taken from; None for the one in hand."""
    wanted = world.goal_objects & world.pickupable
    if state.holding in wanted and state.holding is not None:
        yield state.holding, None
    for receptacle, contents in enumerate(state.contents):
        for item in contents:
            if item in wanted and item != state.holding:
                yield item, receptacle
