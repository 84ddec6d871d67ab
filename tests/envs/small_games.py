"""A kitchen small enough to read, as an ALFWorld game with any of the six goals."""

from __future__ import annotations

from agentbench_rl.envs.alfworld.gamefile import GameFile
from agentbench_rl.envs.alfworld.logic import PREDICATES, TEMPLATES

DOMAIN = "(define (domain alfred) (:predicates {}) (:functions (total-cost)) {})".format(
    " ".join(f"({name} ?x)" for name in sorted(PREDICATES)),
    " ".join(f"(:action {name} :parameters (?a - agent))" for name in TEMPLATES),
)
GRAMMAR = 'grammar :: """{"task": [{"rhs": "Your task is to: {{GOAL}}"}]}"""\n' + "\n".join(
    f'action {name} {{ template :: "{template}"; feedback :: "{"Ask." if name == "help" else f"#{name}#"}"; }}'
    for name, template in TEMPLATES.items()
)

_PLACE = "(:goal (and (exists (?r - receptacle) (exists (?o - object) (and {} (inReceptacle ?o ?r))))))"
_TYPES = "(objectType ?o AppleType) (receptacleType ?r FridgeType)"
GOALS = {
    "pick_and_place_simple": _PLACE.format(_TYPES),
    "pick_clean_then_place_in_recep": _PLACE.format(f"(cleanable ?o) {_TYPES} (isClean ?o)"),
    "pick_heat_then_place_in_recep": _PLACE.format(f"(heatable ?o) {_TYPES} (isHot ?o)"),
    "pick_cool_then_place_in_recep": _PLACE.format(f"(coolable ?o) {_TYPES} (isCool ?o)"),
    "pick_two_obj_and_place": (
        "(:goal (and (exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 AppleType)"
        " (receptacleType ?r FridgeType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))"
        " (objectType ?o2 AppleType) (receptacleType ?r FridgeType) (inReceptacle ?o2 ?r))))))))"
    ),
    "look_at_obj_in_light": (
        "(:goal (and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and"
        " (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l)"
        " (atLocation ?a ?l) (inReceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and"
        " (objectType ?o AppleType) (holds ?a ?o)))))"
    ),
}

#: Receptacle → (location, openable); objects → (receptacles, location, abilities).
_RECEPTACLES = {
    "Cabinet_bar_1": ("loc_bar_1", False),
    "Cabinet_bar_2": ("loc_bar_1", False),
    "Cabinet_bar_3": ("loc_bar_1", False),
    "Desk_bar_1": ("loc_bar_2", False),
    "Drawer_bar_1": ("loc_bar_2", True),
    "Fridge_bar_1": ("loc_bar_3", True),
    "Microwave_bar_1": ("loc_bar_4", True),
    "Sink_bar_1_bar_SinkBasin": ("loc_bar_5", False),
}
_FOOD = "pickupable cleanable heatable coolable sliceable"
_OBJECTS = {
    "Apple_bar_1": (["Cabinet_bar_1"], "loc_bar_1", _FOOD),
    "Apple_bar_2": (["Sink_bar_1_bar_SinkBasin"], "loc_bar_5", _FOOD),
    "Bowl_bar_1": (["Desk_bar_1"], "loc_bar_2", "pickupable cleanable isReceptacleObject"),
    "DeskLamp_bar_1": (["Drawer_bar_1"], "loc_bar_2", "toggleable"),
    "Egg_bar_1_bar_EggCracked_0": ([], "", "pickupable"),
    "Knife_bar_1": (["Desk_bar_1", "Drawer_bar_1"], "loc_bar_2", "pickupable cleanable"),
    "Pen_bar_1": (["Desk_bar_1"], "loc_bar_2", "pickupable"),
}


def small_game(
    task_type: str = "pick_and_place_simple",
    *,
    trial: str = "trial_1",
    split: str = "train",
    goal: str | None = None,
    domain: str = DOMAIN,
    grammar: str = GRAMMAR,
) -> GameFile:
    """The kitchen with a goal about an apple (and the fridge or the desk lamp)."""
    names = [f"{name} - receptacle" for name in _RECEPTACLES] + [f"{name} - object" for name in _OBJECTS]
    problem = (
        f"(define (problem kitchen) (:domain alfred) (:objects agent1 - agent {' '.join(names)})\n"
        f"(:init {' '.join(_facts())} )\n{goal or GOALS[task_type]})"
    )
    return GameFile(
        task_id=f"{split}/{task_type}-Apple-None-Fridge-1/{trial}",
        task_type=task_type,
        split=split,
        goal="do something with an apple.",
        walkthrough=("go to cabinet 3", "take apple 2 from cabinet 3"),
        problem=problem,
        domain=domain,
        grammar=grammar,
    )


def _facts() -> list[str]:
    facts = ["(atLocation agent1 loc_bar_0)", "(inReceptacleObject Pen_bar_1 Bowl_bar_1)"]
    for name, (location, openable) in _RECEPTACLES.items():
        kind = name.rsplit("_bar_", 1)[-1] if "Basin" in name else name.split("_bar_")[0]
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {location})"]
        facts += [f"(openable {name})"] if openable else []
        facts += [f"(canContain {kind}Type {thing}Type)" for thing in ("Apple", "Knife", "Bowl", "Pen")]
    for name, (receptacles, location, abilities) in _OBJECTS.items():
        facts += [f"({ability} {name})" for ability in abilities.split()]
        facts += [f"(inReceptacle {name} {receptacle})" for receptacle in receptacles]
        if location:
            facts += [f"(objectType {name} {name.split('_bar_')[0]}Type)", f"(objectAtLocation {name} {location})"]
    return facts
