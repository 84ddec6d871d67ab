"""Seeded worlds: people, cities and companies with one page each, and questions that follow relations over them.

A question of n hops names one entity and n relations; each hop's fact stands on another page, and only the page of
the entity named can be found from the question. Names are two words out of small lists, so that names share their
words; no entity stands in two splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from agentbench_rl.envs.search.corpus import Passage, Question
from agentbench_rl.types import AgentRLError

#: Of each kind of entity, its relations and what they lead to: another kind, or one of the things below.
RELATIONS: Mapping[str, Mapping[str, str]] = {
    "person": {"friend": "person", "teacher": "person", "employer": "company", "home": "city", "drink": "drink"},
    "city": {"mayor": "person", "twin": "city", "river": "river"},
    "company": {"founder": "person", "rival": "company", "seat": "city", "ware": "ware"},
}
_SHARES = {"person": 0.6, "city": 0.2, "company": 0.2}
_ATTEMPTS = 1000


def _pairs(first: str, second: str) -> tuple[str, ...]:
    return tuple(f"{a} {b}" for a, b in product(first.split(), second.split()))


def _joined(first: str, second: str) -> str:
    return " ".join(a + b for a, b in product(first.split(), second.split()))


_NAMES: Mapping[str, tuple[str, ...]] = {
    "person": _pairs(
        _joined("Ba Be Da De Fa Fi Ga Go Ka Ku La Ma Mo Na Ne Po", "la mi no ra ru ko ta vi"),
        _joined("Ar Bel Cor Dun El Far Gar Hol In Jor Kal Lor Mer Nor Or Per", "bek den gan kov lin mar don wick"),
    ),
    "city": _pairs(
        _joined(
            "Al Bran Cal Dor Est Fen Glen Har Ing Kirk Lin Mill Nor Os Pen Red", "bury dale mont ton stad vik wich ham"
        ),
        "Bay Bridge Castle Cliff Cove Cross Dam Falls Field Ford Gate Grove Harbour Heath Hill Island Lake Marsh "
        "Meadow Point Port Rock Valley Wood",
    ),
    "company": _pairs(
        _joined("Ax Brix Crux Dex Flex Hex Lux Max Nex Pax Rex Tex Vex Wex Yex Zex", "an era ica on ula ys ent ium"),
        "Bank Brothers Foods Forge Foundry Group Guild House Labs Lines Mill Motors Mutual Partners Post Press Rail "
        "Shop Studio Supply Tools Trade Union Works",
    ),
}
_THINGS: Mapping[str, tuple[str, ...]] = {
    "drink": _pairs(
        "apple cherry ginger honey lemon mango mint peach pear plum rose vanilla",
        "beer brew cider cocoa cordial juice milk nectar punch soda tea wine",
    ),
    "river": _pairs(
        "Black Blue Clear Cold Dark Deep Green Grey Long Red Silver White",
        "Adder Beck Brook Creek Eel Elbe Heron Otter Pike Run Swan Trout",
    ),
    "ware": _pairs(
        "brass ceramic copper cotton glass iron leather linen paper silk steel wooden",
        "bells belts boats bowls boxes chairs clocks hats kites lamps pens ropes",
    ),
}


@dataclass(frozen=True, slots=True)
class World:
    """Kinds of entities by name, and `facts[name][relation]`: a name or a thing."""

    kinds: Mapping[str, str]
    facts: Mapping[str, Mapping[str, str]]

    def passages(self) -> list[Passage]:
        """One page per entity."""
        return [
            Passage(_page_id(name), name, f"{name} is a {kind}. {_told(self.facts[name])}")
            for name, kind in sorted(self.kinds.items())
        ]

    def follow(self, start: str, relations: Sequence[str]) -> list[str]:
        """What the relations lead to one after another, `start` first."""
        path = [start]
        for relation in relations:
            path.append(self.facts[path[-1]][relation])
        return path


def generate_world(seed: int, split: str, entities: int, world: int = 0) -> World:
    """A world of about `entities` entities, a function of the arguments; worlds of two splits share no entity."""
    rng = random.Random(f"search/{seed}/{split}/world{_suffix(world)}")
    kinds: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    for kind, share in _SHARES.items():
        names = [name for name in _NAMES[kind] if _split_of(name) == split]
        members[kind] = rng.sample(names, max(2, round(share * entities)))
        kinds |= dict.fromkeys(members[kind], kind)
    targets = members | {thing: list(values) for thing, values in _THINGS.items()}
    facts = {
        name: {relation: _other(name, targets[target], rng) for relation, target in RELATIONS[kind].items()}
        for name, kind in kinds.items()
    }
    return World(kinds, facts)


def generate_questions(
    worlds: Sequence[World], seed: int, split: str, count: int, hops: Sequence[int]
) -> list[list[Question]]:
    """`count` different questions by world, the numbers of hops in turn; fewer questions are the first of more.

    Question n has hops[n % len(hops)] hops; the worlds take turns after every len(hops) questions. Raises AgentRLError
    when a world does not hold so many.
    """
    numbers: list[list[int]] = [[] for _ in worlds]
    for number in range(count):
        numbers[number // len(hops) % len(worlds)].append(number)
    return [
        _ask_about(world, random.Random(f"search/{seed}/{split}/questions{_suffix(index)}"), split, own, hops)
        for index, (world, own) in enumerate(zip(worlds, numbers, strict=True))
    ]


def _ask_about(
    world: World, rng: random.Random, split: str, numbers: Sequence[int], hops: Sequence[int]
) -> list[Question]:
    """The questions of one world, by their numbers in the split."""
    starts = sorted(world.kinds)
    asked: dict[str, Question] = {}
    for number in numbers:
        wanted = hops[number % len(hops)]
        question = _new_question(world, starts, wanted, f"{split}-{number:05d}", asked, rng)
        if question is None:
            raise AgentRLError(
                f"environment.generator: a world of split {split!r} has too few questions of {wanted} hops "
                f"({len(numbers)} of {tuple(hops)} hops are asked for); raise entities or worlds"
            )
        asked[question.question] = question
    return list(asked.values())


def _new_question(
    world: World, starts: Sequence[str], hops: int, qid: str, asked: Mapping[str, Question], rng: random.Random
) -> Question | None:
    for _ in range(_ATTEMPTS):
        relations = _chain(world, rng.choice(starts), hops, rng)
        if relations is None:
            continue
        start, *steps = relations
        path = world.follow(start, steps)
        text = _ask(world, start, steps, path[-1])
        if text not in asked and len(set(path)) == len(path):
            return Question(qid, text, (path[-1],), tuple(map(_page_id, path[:-1])), f"{hops}hop")
    return None


def _chain(world: World, start: str, hops: int, rng: random.Random) -> list[str] | None:
    """`start` and `hops` relations of which all but the last lead to an entity; None at a dead end."""
    relations: list[str] = []
    name = start
    for _ in range(hops):
        if name not in world.kinds:
            return None
        relations.append(rng.choice(sorted(world.facts[name])))
        name = world.facts[name][relations[-1]]
    return [start, *relations]


def _ask(world: World, start: str, relations: Sequence[str], answer: str) -> str:
    who = "Who" if world.kinds.get(answer) == "person" else "What"
    return f"{who} is the {' of the '.join(reversed(relations))} of {start}?"


def _told(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{relation}: {value}" for relation, value in facts.items()) + "."


def _other(name: str, candidates: Sequence[str], rng: random.Random) -> str:
    """One of the candidates that is not `name` itself."""
    while (chosen := rng.choice(candidates)) == name:
        pass
    return chosen


def _page_id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _suffix(world: int) -> str:
    return f"/{world}" if world else ""


def _split_of(name: str) -> str:
    """Half of all names are for training, a quarter each for validation and test."""
    part = hashlib.sha256(name.encode()).digest()[0] % 4
    return ("train", "train", "validation", "test")[part]
