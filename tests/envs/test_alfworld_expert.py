"""The planner wins from every reachable state, and the searching expert from text alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.actions import introduction
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.envs.alfworld.expert import plan
from agentbench_rl.envs.alfworld.gamefile import GameFile, load_games
from agentbench_rl.envs.alfworld.generator import Sizes, generate, generate_split
from agentbench_rl.envs.alfworld.search_expert import SearchExpert
from agentbench_rl.envs.alfworld.world import parse_world
from agentbench_rl.types import AgentRLError

SMALL = Sizes(receptacles=(6, 9), objects=(6, 12), floor_plans=8, task_types=TASK_TYPES)
LARGE = Sizes(receptacles=(15, 35), objects=(20, 40), floor_plans=20, task_types=TASK_TYPES)


def small(task_type: str) -> Sizes:
    return Sizes(receptacles=(6, 9), objects=(6, 12), floor_plans=8, task_types=(task_type,))


def start(game: GameFile) -> AlfworldEngine:
    return AlfworldEngine.at_start(parse_world(game))


def wins(engine: AlfworldEngine, commands: list[str] | None) -> bool:
    assert commands is not None
    results = [engine.step(command) for command in commands]
    assert all(result.observation != "Nothing happens." for result in results)
    assert not any(result.success for result in results[:-1])
    return engine.process_reward() == 1.0


def wander(engine: AlfworldEngine, rng: random.Random, steps: int) -> bool:
    """Random commands, mostly ones that change something; whether the game was won on the way."""
    for _ in range(steps):
        commands = engine.admissible()
        idle = ("go to", "examine", "look", "inventory", "help")
        changing = [command for command in commands if not command.startswith(idle)]
        if engine.step(rng.choice(changing if changing and rng.random() < 0.7 else commands)).success:
            return True
    return False


def search(game: GameFile, seed: int, noise: float = 0.0, told: bool = True) -> int | None:
    """Commands until the searching expert wins; a command is somebody else's with probability `noise`."""
    engine, expert, rng = start(game), SearchExpert(seed), random.Random(seed)
    observation, executed = introduction(engine.world, engine.state), ""
    for turn in range(50):
        command = expert.act(observation, executed if told else None)
        if rng.random() < noise:
            foreign = rng.choice(engine.admissible())
            command = rng.choice(("go to moon 1", "take apple 9 from fridge 1", foreign))
        result = engine.step(command)
        observation, executed = result.observation, command
        if result.success:
            return turn + 1
    return None


def rate(games: list[GameFile], noise: float = 0.0, told: bool = True) -> float:
    wins = [search(game, seed, noise, told) is not None for seed, game in enumerate(games)]
    return sum(wins) / len(wins)


@settings(max_examples=60, deadline=None)
@given(
    task_type=st.sampled_from(TASK_TYPES),
    index=st.integers(0, 500),
    seed=st.integers(0, 10**6),
    steps=st.integers(0, 80),
)
def test_the_planner_wins_from_reachable_states(task_type: str, index: int, seed: int, steps: int) -> None:
    game = generate(1, "train", index, **small(task_type))
    engine = start(game)
    won = wander(engine, random.Random(seed), steps)
    if won:
        assert plan(engine) == []
    else:
        assert wins(engine, plan(engine))


@settings(max_examples=25, deadline=None)
@given(task_type=st.sampled_from(TASK_TYPES), index=st.integers(0, 500), seed=st.integers(0, 10**6))
def test_following_the_planner_step_by_step_gets_ever_closer(task_type: str, index: int, seed: int) -> None:
    engine = start(generate(1, "train", index, **small(task_type)))
    if wander(engine, random.Random(seed), 30):
        return
    first = plan(engine)
    assert first is not None
    for remaining in range(len(first), 0, -1):
        command = engine.expert_action()
        assert command is not None
        result = engine.step(command)
        if result.success:
            break
        replanned = plan(engine)
        assert replanned is not None
        assert len(replanned) < remaining
    assert engine.expert_action() is None


def test_the_planner_undoes_a_wrong_temperature() -> None:
    game = generate(1, "train", 0, **small("pick_heat_then_place_in_recep"))
    engine = start(game)
    take = next(command for command in game.walkthrough if command.startswith("take "))
    for command in game.walkthrough[: game.walkthrough.index(take) + 1]:
        engine.step(command)
    item = take.removeprefix("take ").split(" from ")[0]
    heat = f"heat {item} with microwave 1"
    for command in ("go to microwave 1", heat, "go to fridge 1", f"cool {item} with fridge 1"):
        engine.step(command)
    assert heat in (plan(engine) or [])
    assert wins(engine, plan(engine))


def test_the_planner_gives_up_only_where_nothing_accepts_the_held_object(data_dir: Path) -> None:
    for game in load_games(data_dir / "alfworld", "valid_unseen")[::5]:
        for seed in range(3):
            engine = start(game)
            if wander(engine, random.Random(seed), 40):
                continue
            commands = plan(engine)
            if commands is None:
                held = engine.state.holding
                assert held is not None
                assert not any(held in accepted for accepted in engine.world.accepts)
            else:
                assert wins(engine, commands)


def test_the_planner_is_as_short_as_the_recorded_walkthroughs(data_dir: Path) -> None:
    games = load_games(data_dir / "alfworld", "valid_seen")
    lengths = [(len(plan(start(game)) or []), len(game.walkthrough)) for game in games]
    assert all(0 < planned <= recorded + 2 for planned, recorded in lengths)
    assert sum(planned <= recorded for planned, recorded in lengths) >= 0.95 * len(lengths)


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_the_search_expert_wins_generated_games(sizes: Sizes) -> None:
    assert rate(generate_split(21, "train", 90, **sizes)) >= 0.98


def test_the_search_expert_wins_real_games(data_dir: Path) -> None:
    games = load_games(data_dir / "alfworld", "train")
    assert rate(random.Random(0).sample(games, 200)) >= 0.95


@pytest.mark.parametrize("told", [True, False])
def test_the_search_expert_recovers_from_foreign_and_failed_commands(told: bool) -> None:
    assert rate(generate_split(22, "train", 60, **SMALL), noise=0.3, told=told) >= 0.95


def test_the_search_expert_copes_with_shared_locations() -> None:
    """A receptacle at the same place cannot be gone to: the expert looks, and then uses it."""
    expert = SearchExpert(0)
    scene = "Looking quickly around you, you see a drawer 2, and a drawer 1."
    task = "\n\nYour task is to: look at pen under the desklamp."
    opened = "You open the {0}. The {0} is open. In it, you see {1}."
    first = expert.act(scene + task).removeprefix("go to ")
    other = "drawer 1" if first == "drawer 2" else "drawer 2"
    assert expert.act(f"You arrive at {first}. The {first} is closed.") == f"open {first}"
    assert expert.act(opened.format(first, "nothing")) == f"go to {other}"
    assert expert.act("Nothing happens.") == "look"
    facing = f"You are facing the {first}, and {other}. Next to it, you see nothing."
    assert expert.act(facing) == f"examine {other}"
    assert expert.act(f"The {other} is closed.") == f"open {other}"
    assert expert.act(opened.format(other, "a pen 1")) == f"take pen 1 from {other}"


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 100), steps=st.integers(1, 60))
def test_the_search_expert_always_answers(seed: int, steps: int) -> None:
    """Even an environment in which every command fails for ever gets a next command."""
    game = generate(1, "train", seed, **SMALL)
    engine = start(game)
    expert = SearchExpert(seed)
    expert.act(introduction(engine.world, engine.state))
    answers = [expert.act("Nothing happens.") for _ in range(steps)]
    assert all(answers)


def test_the_search_expert_depends_on_text_and_seed_alone() -> None:
    game = generate(1, "train", 5, **LARGE)
    assert len({search(game, seed) for seed in range(8)}) <= 2
    assert search(game, 3) == search(game, 3)


def test_human_sentences_are_refused() -> None:
    with pytest.raises(AgentRLError, match="template goals"):
        SearchExpert(0).act("You see a bed 1.\n\nYour task is to: Please tidy up.")
