"""An expert that sees what the agent sees: it searches, remembers and acts on the observations' text alone.

Its search order is one a small policy can imitate: receptacle types in a fixed order per object type, the
one with the best chance per step first (from the tables of `household`); within a type in the order of the
room's listing, or, for half of the seeds, in the reverse order. Nothing is searched twice, and closed
receptacles are opened on arrival.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from functools import cache

from agentbench_rl.envs.alfworld.household import ROOMS, tables
from agentbench_rl.types import AgentRLError

_GOALS = (
    r"(?P<light>look at|examine the) (?P<kind>\w+) (?:under|with) the (?P<parent>\w+)\.",
    r"(?:put|find) (?P<two>two) (?P<kind>\w+) (?:in|and put them in) (?P<parent>\w+)\.",
    r"(?P<how>clean|heat|cool) some (?P<kind>\w+) and put it in (?P<parent>\w+)\.",
    r"put a (?P<how>clean|hot|cool) (?P<kind>\w+) in (?P<parent>\w+)\.",
    r"put (?:a|some) (?P<kind>\w+) (?:in|on) (?P<parent>\w+)\.",
)
_VERBS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool"}
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_NAME = r"(\w+ \d+)"
_LISTED = re.compile(rf"\ba {_NAME}")
_CONTENTS = re.compile(rf"(?:On the {_NAME}, |The {_NAME} is open\. In it, )you see (.*?)\.")
_CLOSED = re.compile(rf"The {_NAME} is closed\.")
_FACING = re.compile(r"You are facing the (.*?)\. Next to it")
_EVENT = re.compile(
    rf"You (arrive at|open the|close the|pick up the|move the|clean the|heat the|cool the) {_NAME}"
    rf"(?: (?:from|to|using) the {_NAME})?\."
)
_HOPELESS = 3


class SearchExpert:
    """Plays one episode: `act` takes each observation, the first included, and returns the next command."""

    def __init__(self, seed: int) -> None:
        self._reverse = random.Random(seed).random() < 0.5
        self._last = ""
        self._receptacles: list[str] = []
        self._here: set[str] = set()
        self._together: dict[str, set[str]] = defaultdict(set)
        self._contents: dict[str, list[str]] = {}
        self._closed: set[str] = set()
        self._holding: str | None = None
        self._origin: str | None = None
        self._treated: set[tuple[str, str]] = set()
        self._duds: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._checks: list[str] = []

    def act(self, observation: str, executed: str | None = None) -> str:
        """Next command after `observation`.

        `executed` is the command that led to it; None stands for the one proposed last. Raises AgentRLError for a
        task sentence that is none of ALFWorld's templates.
        """
        own = executed is None or executed == self._last
        if own and self._checks and self._checks[0] == self._last:
            self._checks.pop(0)
        self._read(observation, own)
        self._last = self._checks[0] if self._checks else self._decide()
        return self._last

    def _read(self, observation: str, own: bool) -> None:
        if "Your task is to: " in observation:
            self._start(observation)
        if observation == "Nothing happens." and own:
            self._fail(self._last)
        for verb, first, second in _EVENT.findall(observation):
            self._happen(verb.split()[0], first, second)
        if facing := _FACING.search(observation):
            self._stand(set(re.findall(_NAME, facing[1])))
        for surface, container, listing in _CONTENTS.findall(observation):
            self._contents[surface or container] = _LISTED.findall(listing)
            self._closed.discard(surface or container)
        for name in _CLOSED.findall(observation):
            self._closed.add(name)
        if observation.startswith("You are carrying: "):
            self._holding = _LISTED.findall(observation)[0]
        elif observation == "You are not carrying anything.":
            self._holding = None

    def _start(self, observation: str) -> None:
        scene, sentence = observation.split("Your task is to: ")
        match = next(filter(None, (re.fullmatch(goal, sentence.strip()) for goal in _GOALS)), None)
        if match is None:
            raise AgentRLError(f"ALFWorld: the expert does not know the task {sentence.strip()!r}; use template goals.")
        goal = match.groupdict()
        self._kind, self._parent = goal["kind"], goal["parent"]
        self._light, self._count = "light" in goal, 2 if "two" in goal else 1
        self._verb = _VERBS[goal["how"]] if "how" in goal else None
        self._receptacles = _LISTED.findall(scene)

    def _happen(self, verb: str, first: str, second: str) -> None:
        place = second or first
        if verb == "arrive" or place not in self._here:
            self._stand({place} | self._together[place])
        if verb == "close":
            self._closed.add(first)
        elif verb == "pick":
            self._holding, self._origin = first, second
            self._contents[second] = [item for item in self._contents.get(second, []) if item != first]
        elif verb == "move":
            self._holding = None
            self._contents.setdefault(second, []).append(first)
        elif verb in _APPLIANCES:
            self._treated.add((first, verb))
            self._treated.discard((first, {"heat": "cool", "cool": "heat"}.get(verb, "")))

    def _stand(self, names: set[str]) -> None:
        self._here = names
        for name in names:
            self._together[name] = names - {name}

    def _fail(self, command: str) -> None:
        """Retry once, then check what was believed; the third failure makes a command hopeless."""
        self._failures[command] += 1
        place = next(iter(re.findall(_NAME, command)[-1:]), "")
        if command.startswith("go to "):
            # Only a receptacle at this very location cannot be gone to.
            self._checks = ["look"]
        elif command.startswith("examine ") and self._failures[command] >= _HOPELESS:
            self._contents.setdefault(place, [])
            self._checks = []
        elif self._failures[command] == _HOPELESS - 1:
            self._checks = ["look", "inventory", *([f"examine {place}"] if place in self._receptacles else [])]

    def _decide(self) -> str:
        command = self._pursue()
        if command is None:
            # Everything was seen in vain: things were moved, or an object was wrongly believed useless.
            self._contents.clear()
            self._duds.clear()
            self._failures.clear()
            command = self._pursue()
        return command or "look"

    def _pursue(self) -> str | None:
        if self._holding and not self._useful(self._holding):
            return self._put_down(self._holding)
        if self._holding:
            return self._use_lamp() if self._light else self._deliver(self._holding)
        found = self._find(self._kind, set() if self._light else self._settled())
        for item, place in found:
            take = f"take {item} from {place}"
            if self._failures[take] < _HOPELESS:
                return self._approach(place) or take
        return self._explore(self._kind)

    def _useful(self, item: str) -> bool:
        return _kind(item) == self._kind and item not in self._duds

    def _find(self, kind: str, excluded: set[str]) -> list[tuple[str, str]]:
        return [
            (item, place)
            for place, items in self._contents.items()
            for item in items
            if _kind(item) == kind and item not in excluded and item not in self._duds
        ]

    def _settled(self) -> set[str]:
        """Objects that are where they belong; when that should have won, they were the wrong ones."""
        done = self._done(self._goal_place())
        if len(done) >= self._count:
            self._duds |= done
        return done

    def _done(self, place: str | None) -> set[str]:
        return {
            item
            for item in self._contents.get(place or "", ())
            if self._useful(item) and (self._verb is None or (item, self._verb) in self._treated)
        }

    def _goal_place(self) -> str | None:
        places = [name for name in self._receptacles if _kind(name) == self._parent]
        return max(places, key=lambda name: len(self._done(name)), default=None)

    def _use_lamp(self) -> str | None:
        for lamp, place in self._find(self._parent, set()):
            if self._failures[f"use {lamp}"] < _HOPELESS:
                return self._go(place) or f"use {lamp}"
        return self._explore(self._parent)

    def _deliver(self, item: str) -> str | None:
        if self._verb and (item, self._verb) not in self._treated:
            for name in self._receptacles:
                command = f"{self._verb} {item} with {name}"
                if _kind(name) == _APPLIANCES[self._verb] and self._failures[command] < _HOPELESS:
                    return self._go(name) or command
        else:
            place = self._goal_place()
            if place and self._failures[f"move {item} to {place}"] < _HOPELESS:
                return self._approach(place) or f"move {item} to {place}"
        self._duds.add(item)
        return self._pursue()

    def _put_down(self, item: str) -> str | None:
        fits = _accepting(_kind(item))
        places = sorted(
            self._receptacles,
            key=lambda name: (name != self._origin, _kind(name) not in fits, name not in self._here),
        )
        for place in places:
            if self._failures[f"move {item} to {place}"] < _HOPELESS:
                return self._approach(place) or f"move {item} to {place}"
        return None

    def _explore(self, kind: str) -> str | None:
        listed = self._receptacles[::-1] if self._reverse else self._receptacles
        likely = _likelihood(kind)
        for place in sorted(listed, key=lambda name: -likely.get(_kind(name), 0.0)):
            if place not in self._contents:
                return self._approach(place)
        return None

    def _go(self, place: str) -> str | None:
        return None if place in self._here else f"go to {place}"

    def _approach(self, place: str) -> str | None:
        """The next command towards standing at an open receptacle whose contents are known; None: done."""
        if place not in self._here:
            return f"go to {place}"
        if place in self._closed:
            return f"open {place}"
        return None if place in self._contents else f"examine {place}"


def _kind(name: str) -> str:
    return name.rsplit(" ", 1)[0]


@cache
def _accepting(kind: str) -> frozenset[str]:
    """Receptacle types in which an object of this type usually may be put."""
    contains = tables()["contains"].items()
    return frozenset(place.lower() for place, kinds in contains if kind in {name.lower() for name in kinds})


@cache
def _likelihood(kind: str) -> dict[str, float]:
    """Receptacle type → chance of finding an object of this type per command spent there."""
    openable = tables()["properties"]["openable"]
    likely: dict[str, float] = {}
    for room in ROOMS:
        for name, places in tables()[room]["objects"].items():
            for place, weight in places.items() if name.lower() == kind else ():
                usual = tables()[room]["receptacles"].get(place, (0, 1.0, 1))[1]
                chance = weight / max(1.0, usual) / (2 if place in openable else 1)
                likely[place.lower()] = max(likely.get(place.lower(), 0.0), chance)
    return likely
