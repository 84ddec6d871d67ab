"""The PDDL problem of a generated household, in the form of ALFWorld's released games."""

from __future__ import annotations

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.household import FloorPlan, Item, tables

LIGHT, SIMPLE, CLEAN, COOL, HEAT, TWO = TASK_TYPES
#: Task type → property the object needs, state the goal asks for, receptacle type that brings it about.
TREATMENTS = {
    CLEAN: ("cleanable", "isClean", "SinkBasin"),
    HEAT: ("heatable", "isHot", "Microwave"),
    COOL: ("coolable", "isCool", "Fridge"),
}
#: Types that the domain's rules name, so every problem declares them.
_RULE_OBJECTS, _RULE_RECEPTACLES = ("ButterKnife", "Knife"), ("Fridge", "Microwave", "SinkBasin")
_PLACED = "(inReceptacle {o} ?r) (objectType {o} {object}Type) (receptacleType ?r {parent}Type)"


def problem_text(name: str, task_type: str, target: str, parent: str, plan: FloorPlan, items: tuple[Item, ...]) -> str:
    """Write the problem `name`: the household's receptacles and objects, where they are, and the goal."""
    object_types = sorted({item.type for item in items}.union(_RULE_OBJECTS))
    receptacle_types = sorted(plan.types.union(_RULE_RECEPTACLES))
    declarations = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in object_types),
        *(f"{kind}Type - rtype" for kind in receptacle_types),
        *(f"{item.id} - object" for item in items),
        *(f"{receptacle.id} - receptacle" for receptacle in plan.receptacles),
        *(f"{location} - location" for location in plan.locations),
    ]
    facts = [
        *_receptacle_facts(plan),
        *_object_facts(items),
        *_fitting(plan.types, {item.type for item in items}),
        f"(atLocation agent1 {plan.start})",
    ]
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{_lines(declarations)})\n"
        f"(:init\n{_lines(facts)})\n(:goal {_goal(task_type, target, parent)}))\n"
    )


def _receptacle_facts(plan: FloorPlan) -> list[str]:
    openable = tables()["properties"]["openable"]
    facts = []
    for receptacle in plan.receptacles:
        facts.append(f"(receptacleType {receptacle.id} {receptacle.type}Type)")
        facts.append(f"(receptacleAtLocation {receptacle.id} {receptacle.location})")
        if receptacle.type in openable:
            facts.append(f"(openable {receptacle.id})")
    return facts


def _object_facts(items: tuple[Item, ...]) -> list[str]:
    properties = {name: kinds for name, kinds in tables()["properties"].items() if name != "openable"}
    facts = []
    for item in items:
        facts.append(f"(objectType {item.id} {item.type}Type)")
        facts.append(f"(inReceptacle {item.id} {item.receptacle.id})")
        facts.append(f"(objectAtLocation {item.id} {item.receptacle.location})")
        facts += [f"({name} {item.id})" for name, kinds in properties.items() if item.type in kinds]
        if item.type not in properties["toggleable"]:
            facts.append(f"(pickupable {item.id})")
    return facts


def _fitting(receptacle_types: frozenset[str], object_types: set[str]) -> list[str]:
    contains = tables()["contains"]
    return [
        f"(canContain {receptacle}Type {kind}Type)"
        for receptacle in sorted(receptacle_types & contains.keys())
        for kind in sorted(object_types & contains[receptacle])
    ]


def _goal(task_type: str, target: str, parent: str) -> str:
    if task_type == LIGHT:
        return (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
            f"(objectType ?ot {parent}Type) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) "
            "(atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {target}Type) (holds ?a ?o))))"
        )
    first, second = (_PLACED.format(o=o, object=target, parent=parent) for o in ("?o1", "?o2"))
    if task_type == TWO:
        inner = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {second}))"
        return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {first} {inner}))))"
    treated = ""
    if task_type in TREATMENTS:
        able, state, _ = TREATMENTS[task_type]
        treated = f"({able} ?o1) ({state} ?o1) "
    return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {treated}{first}))))"


def _lines(rows: list[str]) -> str:
    return "".join(f"    {row}\n" for row in rows)
