"""ARPO's decisions: their probability, their order, and the limits of beam and leaves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeSampler, World, player, task
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config.topology import EntropyBranch
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.entropy_branching import branch_by_entropy
from agentbench_rl.rollout.episode import EpisodeSpec, specs_of_groups
from agentbench_rl.types import AgentRLError, silent

VOCABULARY = 16
#: Tokens of the response "look".
TOKENS = 5


def script(session: str, step: int) -> str:
    return "look"


def branched(
    *names: str,
    entropy: Callable[[str, int], float] = lambda session, step: 0.25,
    world: World | None = None,
    play: dict[str, Any] | None = None,
    **topology: Any,
) -> tuple[Rollouts, list[list[EpisodeSpec]]]:
    """Rollouts of episodes of four turns, and the batches they were played in."""
    chosen = EntropyBranch(kind="entropy_branch", **topology)
    played = player(
        FakeSampler(script, entropy), **{"world": world, "max_turns": 4, "max_context_tokens": 900} | (play or {})
    )
    batches: list[list[EpisodeSpec]] = []

    def remember(specs: Any, progress: Any) -> Rollouts:
        batches.append(list(specs))
        return played(specs, progress)

    chains = specs_of_groups([task(name) for name in names], chosen.leaves, "s0.i0")
    return branch_by_entropy(chains, remember, chosen, VOCABULARY, silent), batches


def depths(batches: list[list[EpisodeSpec]]) -> list[list[int | None]]:
    return [[spec.origin.step if spec.origin else None for spec in batch] for batch in batches]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(0, 6), st.integers(2, 4), st.floats(0, 1), st.integers(1, 5))
def test_every_task_has_its_leaves_whatever_is_forked(
    initial: int, more: int, beam: int, base: float, slots: int
) -> None:
    world = World()
    shape = {"initial": initial, "leaves": initial + more, "beam": beam, "base": base}
    rollouts, batches = branched("a", "b", world=world, play={"slots": slots}, **shape)
    assert Counter(episode["task_id"] for episode in rollouts.episodes) == {"a": initial + more, "b": initial + more}
    assert rollouts.metrics["returns_per_task"] == initial + more
    assert len({episode["episode_id"] for episode in rollouts.episodes}) == len(rollouts.episodes)
    copies = Counter((s.tree_id, s.origin.parent_id) for batch in batches for s in batch if s.origin is not None)
    assert max(copies.values(), default=0) <= beam - 1
    assert world.opened == world.closed


@pytest.mark.parametrize(("rise", "expected"), [(0.0, 0.5), (1.0, 0.7), (-1.0, 0.3), (9.0, 1.0), (-9.0, 0.0)])
def test_a_fork_is_as_likely_as_the_change_of_entropy_says(rise: float, expected: float) -> None:
    """H of a turn: the sum over its tokens over ln |V|; the first turn's is that much lower."""
    per_token = rise * math.log(VOCABULARY) / TOKENS

    def entropy(session: str, step: int) -> float:
        return 20.0 + (per_token if step else 0.0)

    shape = {"initial": 400, "leaves": 800, "tokens": 5}
    rollouts, batches = branched("a", entropy=entropy, play={"slots": 100, "max_turns": 2}, **shape)
    assert rollouts.cost["forks"] / 400 == pytest.approx(expected, abs=0.08)
    assert {depth for batch in depths(batches) for depth in batch} <= {None, 1}


def test_only_the_first_tokens_of_a_turn_count() -> None:
    """`look` and an end: with one token the change is a fifth of that of all five."""
    change = 2.5 * math.log(VOCABULARY) / TOKENS
    for tokens, share in ((1, 0.6), (5, 1.0), (20, 1.0)):
        rollouts, _ = branched(
            "a",
            entropy=lambda s, step: change * (step > 0),
            initial=400,
            leaves=800,
            tokens=tokens,
            play={"slots": 100, "max_turns": 2},
        )
        assert rollouts.cost["forks"] / 400 == pytest.approx(share, abs=0.08)


def test_decisions_are_taken_step_by_step_and_include_the_forks() -> None:
    """Every decision is a fork: at step 1 of the first chains, at step 2 of those and of their forks, and so on."""
    rollouts, batches = branched("a", base=1.0, initial=2, leaves=11)
    assert depths(batches) == [[None] * 2, [1] * 2, [2] * 4, [3] * 3]
    names = [[spec.episode_id.removeprefix("s0.i0.a.") for spec in batch] for batch in batches]
    assert names == [
        ["t0.b0", "t1.b0"],
        ["t0.b1", "t1.b1"],
        ["t0.b2", "t1.b2", "t0.b3", "t1.b3"],
        ["t0.b4", "t1.b4", "t0.b5"],
    ]
    parents = [spec.origin.parent_id for batch in batches[2:] for spec in batch if spec.origin is not None]
    assert parents[:4] == [f"s0.i0.a.{name}.1" for name in ("t0.b0", "t1.b0", "t0.b1", "t1.b1")]
    assert rollouts.metrics["branch_depth"] == pytest.approx((2 * 1 + 4 * 2 + 3 * 3) / 9 / 4)
    assert rollouts.metrics["branch_points"] == 9 / 2
    order = [(turn["tree_id"], turn["branch"], turn["step"]) for turn in rollouts.turns]
    assert order == sorted(order)


def test_a_fork_is_compared_with_the_first_turn_of_its_chain_not_with_its_own() -> None:
    """Of a chain whose entropy rises once for good, forks rise as much: all are forked at every step."""
    _, batches = branched(
        "a", entropy=lambda s, step: 9.0 * (step > 0 or ".b0" not in s), base=0.0, initial=1, leaves=99
    )
    assert [len(batch) for batch in batches[:4]] == [1, 1, 2, 4]


def test_missing_leaves_are_filled_with_fresh_chains() -> None:
    rollouts, batches = branched("a", "b", base=0.0, weight=0.0, initial=2, leaves=5)
    assert depths(batches) == [[None] * 4, [None] * 6]
    trees = {episode["tree_id"] for episode in rollouts.episodes}
    assert trees == {f"s0.i0.{name}.t{k}" for name in "ab" for k in range(5)}
    assert "forks" not in rollouts.cost
    assert "branch_depth" not in rollouts.metrics


def test_nothing_is_forkable_where_all_leaves_are_there_at_the_start() -> None:
    rollouts, batches = branched("a", initial=3, leaves=3)
    assert [spec.forkable for spec in batches[0]] == [False] * 3
    assert "snapshots" not in rollouts.cost


def test_decisions_depend_neither_on_slots_nor_on_other_tasks() -> None:
    shape = {"initial": 2, "leaves": 9}
    alone, _ = branched("a", play={"slots": 1}, **shape)
    together, _ = branched("b", "a", play={"slots": 7}, **shape)
    assert alone.cost["forks"] > 0

    def of_a(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        return sorted((row for row in rows if row["task_id"] == "a"), key=lambda row: row[key])

    assert of_a(alone.turns, "turn_id") == of_a(together.turns, "turn_id")
    assert of_a(alone.episodes, "episode_id") == of_a(together.episodes, "episode_id")


def test_chains_that_died_are_forked_before_their_last_turn_and_count_as_leaves() -> None:
    world = World({"step a 2": 1, "reset b": 1})
    rollouts, batches = branched("a", "b", world=world, base=1.0, initial=1, leaves=4)
    endings = Counter((episode["task_id"], episode["ending"]) for episode in rollouts.episodes)
    assert endings == {
        ("a", "env_error"): 1,
        ("a", "truncated_turns"): 3,
        ("b", "env_error"): 1,
        ("b", "truncated_turns"): 3,
    }
    assert [spec.origin for batch in batches for spec in batch if spec.task.task_id == "b"] == [None] * 4


def test_a_chain_is_not_forked_where_no_snapshot_can_be_taken() -> None:
    rollouts, batches = branched("a", world=World({"snapshot a 2": 99}), base=1.0, initial=1, leaves=9)
    assert depths(batches) == [[None], [1], [3] * 2, [None] * 5]
    assert {episode["ending"] for episode in rollouts.episodes} == {"truncated_turns"}


def test_environments_are_closed_when_a_batch_of_forks_fails() -> None:
    world = World({"restore a 1": 99})
    with pytest.raises(AgentRLError, match="infrastructure faults"):
        branched("a", world=world, base=1.0, initial=2, leaves=8, play={"max_fault_share": 0.1})
    assert world.opened == world.closed > 0
