"""Goal-condition success of a state, as ALFRED counts it (Shridhar et al. 2020, arXiv:1912.01734, section 5)."""

from __future__ import annotations

from agentbench_rl.envs.alfworld.world import State, World


def progress(world: World, state: State) -> float:
    """Share of the goal's conditions that hold, in [0, 1]; 1.0 exactly when the game is won.

    * light: the wanted object is in hand; a switched-on lamp of the wanted type is here (2 conditions);
    * place: a wanted object is in a wanted receptacle (1 condition);
    * two: the most wanted objects together in one wanted receptacle, of two (2 conditions);
    * clean, heat, cool: some wanted object is treated; some is in place; one is both (3 conditions).
    """
    goal, wanted = world.goal, world.goal_objects
    if goal.lamp_type is not None:
        return (_lit(world, state) + (state.holding in wanted)) / 2
    placed = [wanted.intersection(state.contents[receptacle]) for receptacle in world.goal_receptacles]
    if goal.treatment is None:
        return min(goal.count, max(map(len, placed), default=0)) / goal.count
    treated = wanted & getattr(state, goal.treatment)
    in_place = frozenset().union(*placed)
    return (bool(treated) + bool(in_place) + bool(treated & in_place)) / 3


def _lit(world: World, state: State) -> bool:
    return any(
        lamp in state.toggled and lamp in state.contents[receptacle]
        for receptacle in world.receptacles_at[state.location]
        for lamp in world.goal_lamps
    )
