"""The continuous scheduler: the rows of the deterministic one, whatever answers when; what ends, hangs and breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import fakes
import pytest
import team_world
import tree_world
from fakes import FakeEnvironment, FakeSampler, LetterCodec, World, player, specs, task
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import Streaming, collect_continuously
from team_world import play_plan, say_once

from agentbench_rl.algorithms.state_table import StateTable
from agentbench_rl.config.topology import Branch, Expand, Grow
from agentbench_rl.rollout import continuous
from agentbench_rl.rollout.branching import branch
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec, roots_of_trees
from agentbench_rl.rollout.expand import Search
from agentbench_rl.rollout.growing import grow
from agentbench_rl.types import AgentRLError, StepResult, silent
from benchmarks import scheduling

LENGTHS = {"a": 1, "b": 4, "c": 2, "d": 1, "e": 3}


def script(session: str, step: int) -> str:
    return "win" if step + 1 == LENGTHS[session.split(".")[2]] else "look"


def told(rollouts: Rollouts) -> list[Any]:
    """All that a stage writes, timings aside."""
    counted = [rollouts.endings, rollouts.cost, rollouts.retried, rollouts.model_calls, rollouts.metrics]
    return [rollouts.turns, rollouts.episodes, *counted]


def both(play: Callable[[], Rollouts], *modules: Any) -> tuple[Rollouts, Rollouts]:
    """What is played with either scheduler, of test modules that call `collect`."""
    expected = play()
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "collect", collect_continuously)
        return expected, play()


def of_letters(names: Sequence[str], faults: dict[str, int], **limits: Any) -> Rollouts:
    sampler, world = FakeSampler(script), World(dict(faults))
    rollouts = player(sampler, world=world, **limits)(specs(*names, group_size=2), silent)
    assert world.opened == world.closed
    assert set(sampler.released) == {f"s0.i0.{name}.t{k}.b0" for name in names for k in range(2)}
    return rollouts


PLACES = ["reset a", "step b 2", "admissible c 0", "state_key e 1", "step e 0"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(LENGTHS)), min_size=1, unique=True),
    st.integers(1, 12),
    st.dictionaries(st.sampled_from(PLACES), st.just(9)),
)
def test_rows_are_those_of_the_deterministic_scheduler(names: list[str], slots: int, faults: dict[str, int]) -> None:
    expected, found = both(lambda: of_letters(names, faults, slots=slots, retries=1), fakes)
    assert told(found) == told(expected)
    assert {row["requests"] for row in found.timings} == {expected.model_calls}


def test_a_fault_is_played_again_and_too_many_are_refused() -> None:
    expected, found = both(lambda: of_letters("abc", {"step b 1": 1}, retries=1), fakes)
    assert found.retried == expected.retried == 1
    with pytest.raises(AgentRLError, match="2 of 6 episodes ended in infrastructure faults"):
        both(lambda: of_letters("abc", {"step b 1": 9}, max_fault_share=0.1), fakes)


def test_events_of_a_team_wait_for_all_their_members() -> None:
    sets = [["a", "b", "c"], ["d"], ["a", "b"]]
    expected, found = both(lambda: play_plan(say_once, sets, *"vwxyz", slots=6)[0], team_world)
    assert told(found) == told(expected)


def backbone(session: str, step: int) -> str:
    return "win" if step == (3 if session.endswith(".b0") else 1) else "look"


TREES: dict[str, Callable[[list[EpisodeSpec], Any], Rollouts]] = {
    "branch": lambda roots, play: branch(roots, play, Branch(kind="branch", siblings=3, points=2), 0.1, silent),
    "grow": lambda roots, play: grow(roots, play, Grow(kind="grow", rounds=2, expansions=2), silent),
}


@pytest.mark.parametrize("kind", TREES)
def test_trees_are_those_of_the_deterministic_scheduler(kind: str) -> None:
    def play() -> Rollouts:
        roots = roots_of_trees([task(name) for name in "abc"], 2, "s0.i0")
        return TREES[kind](roots, player(FakeSampler(backbone), slots=4, max_turns=9))

    expected, found = both(play, fakes)
    assert told(found) == told(expected)
    assert found.cost["forks"] > 0


def test_searches_are_those_of_the_deterministic_scheduler() -> None:
    def play() -> Rollouts:
        journey = tree_world.Journey(tree_world.wander, tree_world.Places(ends=tree_world.Anywhere()))
        search = Search.begin(
            roots_of_trees(tree_world.tasks("hall", "yard"), 1, "r"), Expand(kind="expand"), StateTable(), 0
        )
        rounds = [search.round(journey.play) for _ in range(3)]
        search.close()
        assert not journey.world.open
        return rounds[-1]

    expected, found = both(play, tree_world)
    assert told(found) == told(expected)


class Doubted(FakeEnvironment):
    """Its step waits for a signal, or breaks by a mistake of its author."""

    def __init__(self, world: World, free: threading.Event | None) -> None:
        super().__init__(world)
        self._free = free

    def step(self, action: str) -> StepResult:
        if self._free is None:
            raise KeyError("a mistake of its author")
        if self._task == "a":
            assert self._free.wait(10.0)
        return super().step(action)


def doubted(free: threading.Event | None, world: World, told: Callable[[int, int], None]) -> Rollouts:
    play_settings = tree_world.settings(max_context_tokens=500)
    return continuous.collect(
        specs("a", "b", "c"),
        Streaming(FakeSampler(script)),
        lambda: Doubted(world, free),  # type: ignore[arg-type,return-value]
        LetterCodec(),  # type: ignore[arg-type]
        play_settings,
        slots=2,
        retries=1,
        max_fault_share=1.0,
        progress=told,
    )


def test_nobody_waits_for_a_slow_environment() -> None:
    free = threading.Event()

    def released_by_the_others(done: int, total: int) -> None:
        if done == total - 1:
            free.set()

    rollouts = doubted(free, World(), released_by_the_others)
    assert rollouts.endings == {"success": 3}


def test_a_mistake_in_an_environment_ends_the_stage_with_its_own_error_and_leaves_nothing_open() -> None:
    world = World()
    with pytest.raises(KeyError, match="a mistake of its author"):
        doubted(None, world, silent)
    until = time.monotonic() + 5.0
    while world.opened != world.closed and time.monotonic() < until:
        time.sleep(0.01)
    assert world.opened == world.closed > 0


def test_the_sampler_is_busy_where_a_barrier_would_let_it_wait() -> None:
    """Of 64 episodes, with log-normal steps of a quarter of a turn's decode time; the time is virtual."""
    asked = scheduling.episodes(256, seed=1)
    found = scheduling.play_continuously(asked, 64, seed=1)
    barrier = scheduling.play_with_barrier(asked, 64, seed=1)
    assert found["busy"] >= 0.85 > barrier["busy"]
    assert found["episodes_per_second"] > 1.5 * barrier["episodes_per_second"]
