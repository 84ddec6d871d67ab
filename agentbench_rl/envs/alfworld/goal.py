"""The six kinds of goals in ALFWorld's games."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agentbench_rl.types import AgentRLError

Treatment = Literal["clean", "hot", "cool"]

#: What a treatment needs of an object.
TREATABLE: dict[Treatment, str] = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}

_TYPE = re.compile(r"\((objecttype|receptacletype) (\?\w+) (\w+)\)")
_PLACE = frozenset({"objecttype", "receptacletype", "inreceptacle"})
_LIGHT = frozenset(
    {"objecttype", "toggleable", "istoggled", "receptacleatlocation", "atlocation", "inreceptacle", "holds"}
)
#: Predicates of a goal → what it asks for.
_KINDS: dict[frozenset[str], tuple[int, Treatment | None]] = {
    _PLACE: (1, None),
    _PLACE | {"="}: (2, None),
    **{_PLACE | {able, f"is{treatment}"}: (1, treatment) for treatment, able in TREATABLE.items()},
}


@dataclass(frozen=True, slots=True)
class Goal:
    """What a game asks for; types are lower case, such as `mugtype`.

    With `lamp_type`: hold an object of `object_type` where a switched-on lamp of that type is. Otherwise:
    `count` objects of `object_type`, treated as `treatment` says, in one receptacle of `receptacle_type`.
    """

    object_type: str
    receptacle_type: str | None = None
    lamp_type: str | None = None
    count: int = 1
    treatment: Treatment | None = None


def parse_goal(text: str, origin: str) -> Goal:
    """Parse the `(:goal …)` of a lower-case PDDL problem; raises AgentRLError for an unknown kind of goal."""
    text = re.sub(r"\s+", " ", text)
    predicates = frozenset(re.findall(r"\((=|\w+) \?", text))
    objects = {variable: kind for what, variable, kind in _TYPE.findall(text) if what == "objecttype"}
    receptacles = {kind for what, _, kind in _TYPE.findall(text) if what == "receptacletype"}
    if predicates == _LIGHT and len(objects) == 2:
        lit = re.search(r"\(istoggled (\?\w+)\)", text)
        held = re.search(r"\(holds \?\w+ (\?\w+)\)", text)
        if lit and held and {lit.group(1), held.group(1)} == objects.keys():
            return Goal(object_type=objects[held.group(1)], lamp_type=objects[lit.group(1)])
    if predicates in _KINDS and len(receptacles) == 1 and len(set(objects.values())) == 1:
        count, treatment = _KINDS[predicates]
        if len(objects) == count:
            return Goal(
                object_type=objects.popitem()[1],
                receptacle_type=receptacles.pop(),
                count=count,
                treatment=treatment,
            )
    raise AgentRLError(
        f"{origin}: the goal is none of ALFWorld's six: {text.strip()[:300]}; remove the game from the split."
    )
