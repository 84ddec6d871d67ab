"""ALFWorld's rules: the commands possible in a state, and what each of them does and answers.

Every transition function takes (world, state, *numbers) and returns (next state, observation). They follow the
semantics of ALFWorld's PDDL domain and text grammar as TextWorld plays them, oddities included: `examine` reaches
the receptacles here and the object in hand only, `use` works in closed receptacles, an object can be in two
receptacles at once, and `look` in the middle of the room sees nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentbench_rl.envs.alfworld.world import Action, State, World

INTRODUCTION = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."
_KNIVES = frozenset({"knifetype", "butterknifetype"})


def commands(world: World, state: State) -> dict[str, Action]:
    """The admissible commands, each with its transition."""
    table = _standing_commands(world, state.location).copy()
    for receptacle in world.receptacles_at[state.location]:
        is_open = True
        if receptacle in world.openable:
            is_open = receptacle in state.opened
            verb, action = ("close", close) if is_open else ("open", open_)
            table[f"{verb} {world.receptacle_names[receptacle]}"] = (action, (receptacle,))
        _add_contents(table, world, state, receptacle, is_open)
        if state.holding is not None:
            _add_uses_of_held(table, world, state.holding, receptacle, is_open)
    if state.holding is not None:
        table[f"examine {world.object_names[state.holding]}"] = (examine_object, (state.holding,))
        if world.object_types[state.holding] in _KNIVES:
            _add_slices(table, world, state, state.holding)
    return table


def _standing_commands(world: World, location: int) -> dict[str, Action]:
    """What is possible at a location whatever else holds, computed once per location."""
    table = world.standing_commands.get(location)
    if table is None:
        table = {"look": (look, ()), "inventory": (inventory, ()), "help": (help_, ())}
        for receptacle, name in enumerate(world.receptacle_names):
            if world.location_of[receptacle] == location:
                table[f"examine {name}"] = (examine_receptacle, (receptacle,))
            else:
                table[f"go to {name}"] = (go_to, (receptacle,))
        world.standing_commands[location] = table
    return table


def _add_contents(table: dict[str, Action], world: World, state: State, receptacle: int, is_open: bool) -> None:
    takeable = is_open and state.holding is None
    for item in state.contents[receptacle]:
        if takeable and item in world.pickupable:
            command = f"take {world.object_names[item]} from {world.receptacle_names[receptacle]}"
            table[command] = (take, (item, receptacle))
        if item in world.toggleable:
            table[f"use {world.object_names[item]}"] = (use, (item,))


def _add_uses_of_held(table: dict[str, Action], world: World, held: int, receptacle: int, is_open: bool) -> None:
    name, place = world.object_names[held], world.receptacle_names[receptacle]
    if is_open and held in world.accepts[receptacle]:
        table[f"move {name} to {place}"] = (move, (held, receptacle))
    kind = world.receptacle_types[receptacle]
    if kind in ("sinktype", "sinkbasintype") and held in world.cleanable:
        table[f"clean {name} with {place}"] = (clean, (held, receptacle))
    elif kind == "microwavetype" and held in world.heatable:
        table[f"heat {name} with {place}"] = (heat, (held, receptacle))
    elif kind == "fridgetype" and held in world.coolable:
        table[f"cool {name} with {place}"] = (cool, (held, receptacle))


def _add_slices(table: dict[str, Action], world: World, state: State, knife: int) -> None:
    for item in world.sliceable:
        if state.location in state.places[item]:
            command = f"slice {world.object_names[item]} with {world.object_names[knife]}"
            table[command] = (slice_, (item, knife))


def introduction(world: World, state: State) -> str:
    """The first observation: the room's receptacles (or what the agent faces) and the task sentence."""
    if world.receptacles_at[state.location]:
        scene = _facing(world, state)
    else:
        scene = _room(f"a {name}" for name in world.receptacle_names)
    return f"{INTRODUCTION}\n\n{scene}\n\nYour task is to: {world.sentence}"


def look(world: World, state: State) -> tuple[State, str]:
    # In the middle of the room the grammar asks for receptacles at the agent's own location: there are none.
    return state, _facing(world, state) if world.receptacles_at[state.location] else _room(())


def inventory(world: World, state: State) -> tuple[State, str]:
    if state.holding is None:
        return state, "You are not carrying anything."
    return state, f"You are carrying: a {world.object_names[state.holding]}."


def help_(world: World, state: State) -> tuple[State, str]:
    return state, world.help


def go_to(world: World, state: State, receptacle: int) -> tuple[State, str]:
    text = f"You arrive at {world.receptacle_names[receptacle]}. {_inside(world, state, receptacle)}"
    return state._replace(location=world.location_of[receptacle]), text


def examine_receptacle(world: World, state: State, receptacle: int) -> tuple[State, str]:
    return state, _inside(world, state, receptacle)


def open_(world: World, state: State, receptacle: int) -> tuple[State, str]:
    state = state._replace(opened=state.opened | {receptacle})
    return state, f"You open the {world.receptacle_names[receptacle]}. {_inside(world, state, receptacle)}"


def close(world: World, state: State, receptacle: int) -> tuple[State, str]:
    state = state._replace(opened=state.opened - {receptacle})
    return state, f"You close the {world.receptacle_names[receptacle]}."


def take(world: World, state: State, item: int, receptacle: int) -> tuple[State, str]:
    inside = tuple(other for other in state.contents[receptacle] if other != item)
    places = tuple(place for place in state.places[item] if place != state.location)
    state = state._replace(
        holding=item,
        contents=_with(state.contents, receptacle, inside),
        places=_with(state.places, item, places),
        left=state.left | {(item, receptacle)},
    )
    return state, f"You pick up the {world.object_names[item]} from the {world.receptacle_names[receptacle]}."


def move(world: World, state: State, item: int, receptacle: int) -> tuple[State, str]:
    inside = tuple(sorted({*state.contents[receptacle], item}))
    places = tuple(sorted({*state.places[item], state.location}))
    state = state._replace(
        holding=None,
        contents=_with(state.contents, receptacle, inside),
        places=_with(state.places, item, places),
        left=state.left - {(item, receptacle)},
    )
    return state, f"You move the {world.object_names[item]} to the {world.receptacle_names[receptacle]}."


def clean(world: World, state: State, item: int, receptacle: int) -> tuple[State, str]:
    state = state._replace(clean=state.clean | {item})
    return state, f"You clean the {world.object_names[item]} using the {world.receptacle_names[receptacle]}."


def heat(world: World, state: State, item: int, receptacle: int) -> tuple[State, str]:
    state = state._replace(hot=state.hot | {item}, cool=state.cool - {item})
    return state, f"You heat the {world.object_names[item]} using the {world.receptacle_names[receptacle]}."


def cool(world: World, state: State, item: int, receptacle: int) -> tuple[State, str]:
    state = state._replace(cool=state.cool | {item}, hot=state.hot - {item})
    return state, f"You cool the {world.object_names[item]} using the {world.receptacle_names[receptacle]}."


def use(world: World, state: State, item: int) -> tuple[State, str]:
    return state._replace(toggled=state.toggled | {item}), f"You turn on the {world.object_names[item]}."


def slice_(world: World, state: State, item: int, knife: int) -> tuple[State, str]:
    state = state._replace(sliced=state.sliced | {item})
    return state, f"You sliced the {world.object_names[item]} with the {world.object_names[knife]}."


def examine_object(world: World, state: State, item: int) -> tuple[State, str]:
    name = world.object_names[item]
    if item in world.inner:
        return state, f"This is a normal {name}. In it, you see {_listing(world, world.inner[item])}."
    sliced, warmth = (
        item in state.sliced,
        "hot" if item in state.hot else "cool" if item in state.cool else "",
    )
    adjectives = [*filter(None, [warmth, "clean" if item in state.clean else ""])]
    if adjectives == ["cool"] and not sliced:
        adjectives = ["cold"]
    if adjectives:
        return state, f"This is a {' and '.join(adjectives)}{' sliced' if sliced else ''} {name}."
    if item in world.toggleable and item in state.toggled:
        return state, f"This {name} is on."
    if sliced and item in world.sliceable:
        return state, f"This is a sliced {name}."
    return state, f"There's nothing special about {name}."


def _with(rows: tuple[tuple[int, ...], ...], index: int, row: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*rows[:index], row, *rows[index + 1 :])


def _inside(world: World, state: State, receptacle: int) -> str:
    name, contents = world.receptacle_names[receptacle], state.contents[receptacle]
    if receptacle not in world.openable:
        return f"On the {name}, you see {_listing(world, contents)}."
    if receptacle in state.opened:
        return f"The {name} is open. In it, you see {_listing(world, contents)}."
    return f"The {name} is closed."


def _facing(world: World, state: State) -> str:
    here = world.receptacles_at[state.location]
    # The grammar lists an object once per receptacle here that it was taken from.
    beside = [
        item for item, receptacle in sorted(state.left) if receptacle in here and state.location in state.places[item]
    ]
    faced = _enumeration([world.receptacle_names[receptacle] for receptacle in here])
    return f"You are facing the {faced}. Next to it, you see {_listing(world, beside)}."


def _room(receptacles: Iterable[str]) -> str:
    seen = _enumeration(list(receptacles))
    return f"You are in the middle of a room. Looking quickly around you, you see {seen}."


def _listing(world: World, items: Iterable[int]) -> str:
    return _enumeration([f"a {world.object_names[item]}" for item in items])


def _enumeration(names: Sequence[str]) -> str:
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"
