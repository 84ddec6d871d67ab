"""Trees of a backbone and fresh continuations: which rows there are, what they cost, what a fault does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from fakes import FakeSampler, World, player, specs, task
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from agentbench_rl.config.topology import Branch
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.rollout.branching import branch
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import Row, roots_of_trees
from agentbench_rl.types import SIBLINGS, AgentRLError, episode_schema, rollout_schema, silent, topology_columns

#: Nats before the turns of a backbone; the highest are at 2 and 4.
NATS = [0.1, 0.2, 0.9, 0.3, 0.8, 1.5]
LENGTH = 6


def errand(session: str, turn: int) -> str:
    """A backbone wins with its sixth turn; fresh continuations win with their second, those of odd number lose."""
    if session.endswith(".b0"):
        return "win" if turn == LENGTH - 1 else "look"
    odd = int(session.rsplit("b", 1)[1]) % 2
    return ("lose" if odd else "win") if turn == 1 else f"go {session.rsplit('b', 1)[1]}"


def nats(session: str, turn: int) -> float:
    return NATS[turn % LENGTH] if session.endswith(".b0") else 0.0


def plant(
    script: Callable[[str, int], str] = errand,
    names: tuple[str, ...] = ("a",),
    trees: int = 1,
    entropy: Callable[[str, int], float] = nats,
    threshold: float = 0.0,
    world: World | None = None,
    limits: dict[str, Any] | None = None,
    **changes: Any,
) -> tuple[Rollouts, FakeSampler]:
    asked = Branch(kind="branch", **{"points": 2, "siblings": 3, "spacing": 0, **changes})
    usual: dict[str, Any] = {"world": world, "max_turns": 20, "slots": 3}
    sampler = FakeSampler(script, entropy)
    roots = roots_of_trees([task(name) for name in names], trees, "s0.i0")
    return branch(roots, player(sampler, **usual | (limits or {})), asked, threshold, silent), sampler


def shape(turns: list[Row]) -> list[tuple[int, int, str | None]]:
    """(branch, step, where the row hangs) of one tree."""
    return [(turn["branch"], turn["step"], turn["parent_id"]) for turn in turns]


def test_a_tree_is_its_backbone_and_fresh_continuations_of_its_points_in_a_fixed_order() -> None:
    rollouts, _ = plant()
    tree = "s0.i0.a.t0"
    backbone = [(0, step, f"{tree}.b0.{step - 1}" if step else None) for step in range(LENGTH)]
    fresh = [
        row
        for point, branches in ((2, (1, 2)), (4, (3, 4)))
        for k in branches
        for row in ((k, point, f"{tree}.b0.{point - 1}"), (k, point + 1, f"{tree}.b{k}.{point}"))
    ]
    assert shape(rollouts.turns) == backbone + fresh
    assert {turn["tree_id"] for turn in rollouts.turns} == {tree}
    planned = {(turn["branch"], turn["step"]): turn[SIBLINGS] for turn in rollouts.turns if turn[SIBLINGS]}
    assert planned == {(0, 2): 3, (0, 4): 3}
    assert [episode["episode_id"] for episode in rollouts.episodes] == [f"{tree}.b{k}" for k in range(5)]
    assert [episode["length"] for episode in rollouts.episodes] == [6, 4, 4, 6, 6]
    assert [episode["return"] for episode in rollouts.episodes] == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_the_shape_of_the_trees_is_measured() -> None:
    rollouts, _ = plant(names=("a", "b"), trees=2)
    assert rollouts.metrics == pytest.approx(
        {
            "branch_points": 2.0,
            "returns_per_task": 10.0,
            "incomplete_groups": 0.0,
            "backbone_success": 1.0,
            "branch_depth": (2 / 6 + 4 / 6) / 2,
            "branch_entropy": 0.85,
            "distinct_branch_actions": 1.0,
            "boundaries_without_snapshot": 0.0,
        }
    )
    assert rollouts.cost["forks"] == 4 * 4
    assert rollouts.cost["snapshots"] == 4 * LENGTH


def test_equal_first_actions_of_siblings_are_told() -> None:
    rollouts, _ = plant(lambda _, turn: "win" if turn == LENGTH - 1 else "look", siblings=4)
    assert rollouts.metrics["distinct_branch_actions"] == 1 / 4


@examples(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 2), st.sampled_from(["top_m", "random", "equal", "lowest"]))
def test_a_tree_has_1_plus_m_times_k_minus_1_returns_and_every_sampled_token_once(
    points: int, siblings: int, trees: int, select: str
) -> None:
    rollouts, sampler = plant(names=("a", "b"), trees=trees, points=points, siblings=siblings, select=select)
    returns = Counter(episode["tree_id"] for episode in rollouts.episodes if episode["return"] is not None)
    assert set(returns.values()) == {1 + points * (siblings - 1)}
    assert len(returns) == 2 * trees
    assert len({turn["turn_id"] for turn in rollouts.turns}) == len(rollouts.turns) == len(sampler.requests)
    assert rollouts.cost["sampled_tokens"] == sum(len(turn["response_ids"]) for turn in rollouts.turns)


def test_more_points_than_boundaries_are_as_many_as_there_are() -> None:
    """The last action is no branch point, so a backbone of six turns has five."""
    rollouts, _ = plant(points=40)
    assert rollouts.metrics["branch_points"] == LENGTH - 1


def test_an_episode_of_one_step_is_a_backbone_alone() -> None:
    rollouts, _ = plant(lambda *_: "win")
    assert (len(rollouts.turns), len(rollouts.episodes), rollouts.turns[0][SIBLINGS]) == (1, 1, 0)
    assert rollouts.metrics["branch_points"] == 0.0
    assert "branch_depth" not in rollouts.metrics


def test_an_online_threshold_may_fork_the_only_step() -> None:
    rollouts, _ = plant(lambda *_: "win", select="online_threshold", threshold=0.1)
    assert [turn["branch"] for turn in rollouts.turns] == [0, 1, 2]
    assert rollouts.metrics["branch_threshold"] == 0.1


def test_every_boundary_gets_fresh_continuations_of_which_the_backbone_is_none() -> None:
    rollouts, _ = plant(select="every", siblings=2)
    assert [turn[SIBLINGS] for turn in rollouts.turns] == [3] * LENGTH + [0] * (len(rollouts.turns) - LENGTH)
    first = [(turn["branch"], turn["step"]) for turn in rollouts.turns if turn["turn_id"].endswith(f".{turn['step']}")]
    assert {(1 + 2 * step + k, step) for step in range(LENGTH) for k in range(2)} <= set(first)
    assert len(rollouts.episodes) == 1 + 2 * LENGTH


@pytest.mark.parametrize(("points", "share"), [([200, 400, 600, 800], 7 / 13), ([500], 0.625)])
def test_sampled_tokens_of_a_tree_against_independent_episodes(points: list[int], share: float) -> None:
    """Ten responses of a hundred tokens; siblings branch at the given tokens and go on to the same length."""

    def script(session: str, turn: int) -> str:
        first = 0 if session.endswith(".b0") else starts[int(session.rsplit("b", 1)[1])]
        return "win" if first + turn == 9 else "look"

    steps = [point // 100 for point in points]
    starts = {1 + number * 3 + k: step for number, step in enumerate(steps) for k in range(3)}
    rollouts, _ = plant(script, entropy=lambda _, turn: float(turn in steps), points=len(points), siblings=4)
    returns = 1 + 3 * len(points)
    assert len(rollouts.episodes) == returns
    assert len(rollouts.turns) / (10 * returns) == pytest.approx(share)


def test_siblings_have_the_turns_that_are_left() -> None:
    def endless(_session: str, _turn: int) -> str:
        return "look"

    rollouts, _ = plant(endless, limits={"max_turns": LENGTH})
    assert {episode["ending"] for episode in rollouts.episodes} == {"truncated_turns"}
    assert {episode["length"] for episode in rollouts.episodes} == {LENGTH}
    own = Counter(turn["branch"] for turn in rollouts.turns)
    assert own == {0: 6, 1: 4, 2: 4, 3: 2, 4: 2}


def test_a_sibling_sees_what_the_backbone_saw_and_its_invalid_turns_count_on() -> None:
    def script(session: str, turn: int) -> str:
        if session.endswith(".b0"):
            return ["look", "…", "look", "win"][turn]
        return "…"

    rollouts, sampler = plant(
        script, entropy=lambda _, turn: float(turn == 2), points=1, limits={"max_invalid_turns": 2}
    )
    assert [episode["ending"] for episode in rollouts.episodes] == ["success", "parse_error", "parse_error"]
    assert [episode["length"] for episode in rollouts.episodes] == [4, 3, 3]
    prompts = {request.session: request.prompt_ids for request in reversed(sampler.requests)}
    backbone = [request.prompt_ids for request in sampler.requests if request.session.endswith(".b0")]
    assert prompts["s0.i0.a.t0.b1"] == prompts["s0.i0.a.t0.b2"] == backbone[2]
    assert len({request.seed for request in sampler.requests}) == len(sampler.requests)


@pytest.mark.parametrize("when", ["at the restore", "later"])
def test_a_sibling_that_dies_is_counted_and_never_scored(when: str) -> None:
    def script(session: str, turn: int) -> str:
        return "break" if when == "later" and session.endswith("b1") and turn == 1 else errand(session, turn)

    world = World({"restore a 2": 1} if when == "at the restore" else {})
    rollouts, _ = plant(script, world=world)
    dead = rollouts.episodes[1]
    assert (dead["ending"], dead["return"], dead["success"]) == ("env_error", None, None)
    assert [turn[SIBLINGS] for turn in rollouts.turns if turn[SIBLINGS]] == [3, 3]
    assert rollouts.metrics["incomplete_groups"] == 1.0
    assert rollouts.metrics["returns_per_task"] == 4.0
    assert rollouts.endings["env_error"] == 1
    assert world.opened == world.closed


def test_a_backbone_that_dies_is_not_branched() -> None:
    world = World({"step a 3": 1})
    rollouts, _ = plant(names=("a", "b"), world=world)
    assert Counter(episode["task_id"] for episode in rollouts.episodes) == {"a": 1, "b": 5}
    assert rollouts.metrics["branch_points"] == 1.0
    assert world.opened == world.closed


def test_a_boundary_without_a_snapshot_is_no_branch_point_and_the_episode_goes_on() -> None:
    rollouts, _ = plant(world=World({"snapshot a 2": 1}))
    assert [turn["step"] for turn in rollouts.turns if turn[SIBLINGS]] == [3, 4]
    assert rollouts.metrics["boundaries_without_snapshot"] == 1.0
    assert rollouts.episodes[0]["ending"] == "success"


def test_backbones_are_closed_before_their_continuations_are_played() -> None:
    world, open_then = World(), list[int]()

    def script(session: str, turn: int) -> str:
        if not session.endswith(".b0"):
            open_then.append(world.opened - world.closed)
        return errand(session, turn)

    plant(script, names=("a", "b", "c", "d"), world=world)
    assert 0 < max(open_then) <= 3


def test_no_environment_stays_open() -> None:
    world = World()
    rollouts, sampler = plant(names=("a", "b"), trees=2, world=world)
    assert world.opened == world.closed == len(rollouts.episodes)
    assert rollouts.forkable == {}
    assert Counter(sampler.released) == Counter(episode["episode_id"] for episode in rollouts.episodes)


@pytest.mark.parametrize("place", ["step a 0", "restore a 2"])
def test_no_environment_stays_open_after_an_error(place: str) -> None:
    world = World({place: 99})
    with pytest.raises(AgentRLError, match="infrastructure faults"):
        plant(names=("a", "b"), world=world, limits={"max_fault_share": 0.0})
    assert world.opened == world.closed > 0


@examples(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.sampled_from(["top_m", "random", "equal", "lowest", "every"]))
def test_the_same_seeds_give_the_same_trees_however_they_are_batched(slots: int, select: str) -> None:
    one, _ = plant(names=("a", "b"), trees=2, select=select, points=1.5, limits={"slots": 1})
    many, _ = plant(names=("a", "b"), trees=2, select=select, points=1.5, limits={"slots": slots})
    assert (one.turns, one.episodes, one.metrics) == (many.turns, many.episodes, many.metrics)


def test_the_rows_of_a_tree_stand_together() -> None:
    rollouts, _ = plant(names=("b", "a"), trees=2)
    order = [f"s0.i0.{name}.t{tree}" for name in ("b", "a") for tree in range(2)]
    turns = [(order.index(turn["tree_id"]), turn["branch"], turn["step"]) for turn in rollouts.turns]
    assert turns == sorted(turns)
    assert [row["episode_id"] for row in rollouts.episodes] == [f"{tree}.b{k}" for tree in order for k in range(5)]


def test_rows_fit_the_file_contract() -> None:
    rollouts, _ = plant()
    schema = rollout_schema().append(pa.field(SIBLINGS, topology_columns()[SIBLINGS], nullable=False))
    for rows, expected in ((rollouts.turns, schema), (rollouts.episodes, episode_schema())):
        assert all(set(row) == set(expected.names) for row in rows)
        pa.Table.from_pylist(rows, schema=expected).validate(full=True)


def test_progress_counts_the_backbones_and_then_all() -> None:
    told: list[tuple[int, int]] = []
    play = player(FakeSampler(errand, nats), max_turns=20)
    asked = Branch(kind="branch", points=2, siblings=3, spacing=0)
    branch(roots_of_trees([task("a")], 1, "s0.i0"), play, asked, 0.0, lambda done, total: told.append((done, total)))
    assert told[-1] == (5, 5)
    assert [total for _, total in told] == sorted(total for _, total in told)


def test_the_boundary_entropy_is_that_of_the_first_token_after_the_protocol_s_prefix() -> None:
    class Surprised(FakeSampler):
        """Nats count the tokens."""

        def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
            return [
                replace(done, entropies=[float(n) for n, _ in enumerate(done.token_ids)])
                for done in super().generate(requests)
            ]

    expected = {"": [0.0, 0.0], "> ": [2.0, 0.0]}
    for prefix, nats_of in expected.items():
        play = player(Surprised(lambda _, turn: ["> look", "win"][turn]), prompt={"protocol_prefix": prefix})
        rollouts = play(specs("a"), silent)
        assert [turn["boundary_entropy"] for turn in rollouts.turns] == nats_of
