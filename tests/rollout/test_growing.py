"""Tree-GRPO's trees: how many leaves, which states are expanded, and what faults leave of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fakes import FakeSampler, World, player, task
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config.topology import Grow
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import roots_of_trees
from agentbench_rl.rollout.growing import grow
from agentbench_rl.types import AgentRLError, silent


def script(session: str, step: int) -> str:
    """Backbones have four turns, continuations two of their own."""
    return "win" if step == (3 if session.endswith(".b0") else 1) else "look"


def planted(
    *names: str, answers: Any = script, world: World | None = None, **limits: Any
) -> tuple[Rollouts, FakeSampler]:
    topology = Grow(
        kind="grow", **{name: limits.pop(name) for name in ("trees", "rounds", "expansions") if name in limits}
    )
    sampler = FakeSampler(answers)
    roots = roots_of_trees([task(name) for name in names], topology.trees, "s0.i0")
    return grow(roots, player(sampler, world=world, **limits), topology, silent), sampler


def origins(rollouts: Rollouts) -> list[tuple[str, str | None, int]]:
    """Tree, parent turn and depth of every continuation, in the order of play."""
    firsts: dict[tuple[str, int], tuple[str, str | None, int]] = {}
    for turn in rollouts.turns:
        if turn["branch"]:
            firsts.setdefault((turn["tree_id"], turn["branch"]), (turn["tree_id"], turn["parent_id"], turn["step"]))
    return list(firsts.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_a_tree_has_one_leaf_and_one_more_per_expansion(trees: int, rounds: int, expansions: int, slots: int) -> None:
    world = World()
    shape = {"trees": trees, "rounds": rounds, "expansions": expansions}
    rollouts, _ = planted("a", "b", world=world, slots=slots, max_turns=9, **shape)
    leaves = Counter(episode["tree_id"] for episode in rollouts.episodes)
    assert leaves == {f"s0.i0.{name}.t{k}": 1 + rounds * expansions for name in "ab" for k in range(trees)}
    assert rollouts.metrics["returns_per_task"] == Grow(kind="grow", **shape).group_size
    assert len({turn["turn_id"] for turn in rollouts.turns}) == len(rollouts.turns)
    assert rollouts.cost["forks"] == 2 * trees * rounds * expansions
    assert world.opened == world.closed


def test_trees_do_not_depend_on_slots_nor_on_the_company_of_other_tasks() -> None:
    shape = {"rounds": 3, "max_turns": 9}
    alone, _ = planted("a", slots=1, **shape)
    together, _ = planted("b", "a", slots=7, **shape)
    assert alone.episodes == [episode for episode in together.episodes if episode["task_id"] == "a"]
    assert alone.turns == [turn for turn in together.turns if turn["task_id"] == "a"]


def test_every_state_before_a_turn_is_expanded_as_often_and_an_end_never() -> None:
    """Four states of the backbone: its root and those after its turns 0, 1 and 2; drawn with replacement."""
    rollouts, _ = planted("a", trees=200, expansions=2, slots=50)
    depths = Counter(depth for _, _, depth in origins(rollouts))
    assert set(depths) == {0, 1, 2, 3}
    assert all(60 < count < 140 for count in depths.values())
    drawn = Counter(origins(rollouts))
    assert sum(count == 2 for count in drawn.values()) == pytest.approx(200 / 4, abs=25)


def test_later_rounds_expand_continuations_too_and_a_shared_state_counts_once() -> None:
    """A backbone of one turn; each continuation adds one state of its own, that after its first turn."""
    rollouts, _ = planted(
        "a",
        answers=lambda s, step: "win" if s.endswith(".b0") or step else "look",
        trees=300,
        rounds=2,
        expansions=1,
        slots=50,
    )
    nested = [origin for origin in origins(rollouts) if origin[1] is not None]
    assert len(nested) == pytest.approx(150, abs=40)
    assert {parent for _, parent, _ in nested} == {f"{tree}.b1.0" for tree, _, _ in nested}
    assert {depth for _, _, depth in nested} == {1}


def test_siblings_name_the_prompt_they_share_in_their_first_turn_alone() -> None:
    rollouts, sampler = planted("a", trees=1, expansions=5, slots=9)
    names = {request.session: [] for request in sampler.requests}
    for request in sampler.requests:
        names[request.session].append(request.shared_prompt)
    parents = {(turn["tree_id"], turn["branch"]): turn["parent_id"] for turn in reversed(rollouts.turns)}
    assert set(names.pop("s0.i0.a.t0.b0")) == {None}
    for session, (first, *others) in names.items():
        tree, branch = session.rsplit(".b", 1)
        assert first == f"{tree}:{parents[tree, int(branch)]}"
        assert set(others) == {None}
    assert len(set(map(tuple, names.values()))) < len(names)


def test_a_state_without_a_turn_is_not_expanded() -> None:
    """The context is full before the last prompt: nothing could be sampled there."""
    rollouts, _ = planted("a", answers=lambda *_: "look", trees=30, rounds=2, max_context_tokens=60, max_turns=50)
    assert {episode["ending"] for episode in rollouts.episodes} == {"truncated_tokens"}
    assert len(origins(rollouts)) == 30 * 2 * 2


def test_a_state_without_a_snapshot_is_not_expanded() -> None:
    rollouts, _ = planted("a", world=World({"snapshot a 1": 99}), trees=1, expansions=40, max_turns=9)
    assert {depth for _, _, depth in origins(rollouts)} == {0, 2, 3}
    assert Counter(episode["ending"] for episode in rollouts.episodes) == {"success": 41}


def test_a_tree_whose_backbone_died_at_once_has_no_branches_and_one_that_died_later_grows_before_it() -> None:
    world = World({"reset a": 9, "step b 2": 1})
    rollouts, _ = planted("a", "b", world=world, trees=1, expansions=30, slots=1, max_turns=9)
    endings = Counter((episode["task_id"], episode["ending"]) for episode in rollouts.episodes)
    assert endings == {("a", "env_error"): 1, ("b", "env_error"): 1, ("b", "success"): 30}
    assert {depth for _, _, depth in origins(rollouts)} == {0, 1, 2}
    assert world.opened == world.closed


def test_environments_are_closed_when_a_later_round_fails() -> None:
    world = World({f"restore a {step}": 9 for step in range(4)})
    with pytest.raises(AgentRLError, match="infrastructure faults"):
        planted("a", "b", world=world, max_fault_share=0.1)
    assert world.opened == world.closed > 0


def test_progress_counts_the_episodes_of_all_rounds() -> None:
    told: list[tuple[int, int]] = []
    topology = Grow(kind="grow", trees=2, rounds=2, expansions=2)
    roots = roots_of_trees([task("a")], 2, "s0.i0")
    grow(roots, player(FakeSampler(script), max_turns=9), topology, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (10, 10)
