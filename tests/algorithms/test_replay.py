"""SPEAR's replay: schedule, recalibration, what is held, for how long, and what is trained on again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from replay_runs import Returns, frames, iteration_files

from agentbench_rl.algorithms.replay import (
    Memory,
    empty_memory,
    forget,
    recalibrated,
    remember,
    replay,
    replay_weight,
)
from agentbench_rl.config.algorithm import AlgorithmConfig, ReplayConfig, RewardConfig
from agentbench_rl.types import AgentRLError, advantage_schema, rollout_schema

EIGHT_TURNS = {"a": [1.0, 0.0], "b": [0.0, 1.0]}


def after(
    returns: Returns,
    iteration: int = 0,
    memory: Memory | None = None,
    *,
    order: np.ndarray | None = None,
    greedy: dict[str, float] | None = None,
    scale: float = 1.0,
    advantage: list[float] | None = None,
    **options: Any,
) -> Memory:
    """The memory after an iteration whose advantages are the returns minus the mean of their group."""
    rollouts, episodes = frames(iteration_files(returns, iteration, greedy=greedy))
    paid = rollouts["tree_id"].map(episodes.set_index("tree_id")["return"])
    credited = rollouts[paid.notna() & ~rollouts["tree_id"].str.endswith("greedy")]
    values = paid[credited.index]
    values = values - values.groupby(rollouts["group_id"]).transform("mean")
    columns = {"loss_weight": 1.0, "advantage": values if advantage is None else advantage}
    advantages = credited[["turn_id", "event_id"]].assign(**columns)
    rollouts = rollouts if order is None else rollouts.iloc[order]
    old = pd.Series([[-0.25, -0.25]] * len(rollouts))
    memory, reward = memory or empty_memory(), RewardConfig(scale=scale)
    return remember(memory, rollouts, episodes, advantages, old, reward, ReplayConfig(**options), iteration)


def held(memory: Memory) -> list[str]:
    return memory.turns.filter(memory.turns["replay_weight"].to_numpy() > 0)["turn_id"].to_pylist()


def test_weight_of_the_replay_loss(vectors: dict[str, Any]) -> None:
    vector = vectors["SPEAR-1 replay weight schedule (1-cos(pi*t/200))/2"]
    assert [replay_weight(t, 200) for t in vector["t"]] == pytest.approx(vector["w"], abs=1e-6)


def test_recalibration_against_the_median_of_group_means(vectors: dict[str, Any]) -> None:
    vector = vectors["SPEAR-2 advantage recalibration with P50 baseline, keep >=0"]
    advantages = recalibrated(np.array(vector["stored_R"], float), np.array(vector["group_mean_history"], float))
    assert advantages.tolist() == pytest.approx(vector["A_recal"], abs=1e-6)
    assert (advantages >= 0).tolist() == vector["keep"]


def test_recalibration_divides_by_the_median_std_unless_it_is_zero() -> None:
    returns, means = np.array([3.0, 1.0]), np.array([1.0, 1.0, 1.0])
    assert recalibrated(returns, means, np.array([4.0, 0.0, 2.0])) == pytest.approx([1.0, 0.0], abs=1e-6)
    assert recalibrated(returns, means, np.zeros(3)).tolist() == [2.0, 0.0]


def test_whole_episodes_with_a_positive_advantage_are_held_with_their_scaled_return() -> None:
    memory = after(EIGHT_TURNS, scale=10.0)
    assert held(memory) == ["s0.i0.a.t0.b0.0", "s0.i0.a.t0.b0.1", "s0.i0.b.t1.b0.0", "s0.i0.b.t1.b0.1"]
    assert memory.turns["replay_return"].to_pylist() == [10.0] * 4
    assert memory.turns["replay_old_logprobs"].to_pylist() == [[-0.25, -0.25]] * 4
    assert memory.turns["replay_iteration"].to_pylist() == [0] * 4


def test_the_turns_of_an_episode_without_a_positive_advantage_are_kept_as_context() -> None:
    memory = after({"a": [1.0, 1.0]}, advantage=[-1.0, 1.0, 0.0, 0.0])
    assert memory.turns["turn_id"].to_pylist() == ["s0.i0.a.t0.b0.0", "s0.i0.a.t0.b0.1"]
    assert held(memory) == ["s0.i0.a.t0.b0.1"]
    assert memory.held == 1


def test_the_baseline_is_taken_of_all_groups_but_not_of_faults_and_greedy_episodes() -> None:
    memory = after({"a": [4.0, 0.0, None], "b": [2.0, 2.0, 2.0]}, greedy={"a": 9.0, "b": 9.0})
    assert memory.history["group_mean"].to_pylist() == [2.0, 2.0]
    assert memory.history["group_std"].to_pylist() == pytest.approx([2.0, 0.0], abs=1e-12)
    assert held(memory) == ["s0.i0.a.t0.b0.0", "s0.i0.a.t0.b0.1"]


def test_the_history_forgets_its_oldest_groups() -> None:
    memory = empty_memory()
    for iteration in range(3):
        memory = after({"a": [float(iteration)], "b": [iteration + 0.5]}, iteration, memory, history=3)
    assert memory.history["group_mean"].to_pylist() == [1.5, 2.0, 2.5]


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(8)))
def test_what_is_held_does_not_depend_on_the_order_of_the_rows(order: list[int]) -> None:
    shuffled, plain = after(EIGHT_TURNS, order=np.array(order)), after(EIGHT_TURNS)
    assert shuffled.turns.equals(plain.turns)
    assert shuffled.history.equals(plain.history)


def test_old_responses_are_forgotten() -> None:
    memory = after({"a": [0.0, 1.0]}, 3, after({"a": [1.0, 0.0]}, 0))
    options = ReplayConfig(max_age=10)
    assert len(held(forget(memory, options, 10))) == 4
    assert held(forget(memory, options, 11)) == ["s0.i3.a.t1.b0.0", "s0.i3.a.t1.b0.1"]
    assert held(forget(memory, options, 14)) == []


def test_nothing_is_replayed_before_the_memory_is_full_enough() -> None:
    memory = after(EIGHT_TURNS)
    left, replayed = replay(memory, ReplayConfig(capacity=2, fill=2.0), 1)
    assert left is memory
    assert replayed is None


def test_a_full_memory_is_replayed_and_emptied_but_keeps_its_history() -> None:
    memory = after(EIGHT_TURNS)
    left, replayed = replay(memory, ReplayConfig(capacity=4, fill=0.75, warmup_iterations=4), 2)
    assert replayed is not None
    assert (left.held, left.turns.num_rows, left.history.equals(memory.history)) == (0, 0, True)
    assert replayed.turns.schema.equals(rollout_schema())
    assert replayed.advantages.schema.equals(advantage_schema())
    turns = replayed.turns.to_pylist()
    assert [turn["turn_id"] for turn in turns][:2] == ["replay.2.s0.i0.a.t0.b0.0", "replay.2.s0.i0.a.t0.b0.1"]
    assert [turn["parent_id"] for turn in turns] == [None, turns[0]["turn_id"], None, turns[2]["turn_id"]]
    credited = replayed.advantages.to_pandas()
    assert credited["turn_id"].tolist() == credited["event_id"].tolist() == [turn["turn_id"] for turn in turns]
    assert credited["advantage"].tolist() == [0.5] * 4
    assert set(credited["source"]) == {"replay"}
    assert credited["source_weight"].tolist() == [0.5] * 4
    assert credited["loss_weight"].tolist() == [1.0] * 4
    assert [list(values) for values in credited["old_logprobs"]] == [[-0.25, -0.25]] * 4


def test_responses_below_the_baseline_are_dropped_and_the_newest_come_first_to_the_capacity() -> None:
    memory = after({"a": [3.0, 2.0]}, 2, after({"b": [1.0, 0.0], "c": [3.0, 0.0]}, 1, after({"a": [5.0, 0.0]}, 0)))
    assert memory.held == 8
    _, replayed = replay(memory, ReplayConfig(capacity=5, fill=1.0), 3)
    assert replayed is not None
    credited = dict(zip(*(replayed.advantages[name].to_pylist() for name in ("turn_id", "advantage")), strict=True))
    assert credited == {
        "replay.3.s0.i0.a.t0.b0.1": 3.0,
        "replay.3.s0.i1.c.t0.b0.0": 1.0,
        "replay.3.s0.i1.c.t0.b0.1": 1.0,
        "replay.3.s0.i2.a.t0.b0.0": 1.0,
        "replay.3.s0.i2.a.t0.b0.1": 1.0,
    }
    assert replayed.turns.num_rows == 6
    assert set(credited) < set(replayed.turns["turn_id"].to_pylist())


def test_a_memory_that_holds_nothing_above_the_baseline_is_emptied_without_replay_rows() -> None:
    memory = after({"a": [9.0, 8.0], "b": [8.0, 9.0]}, 1, after({"a": [1.0, 0.0]}, 0))
    memory = Memory(memory.turns.slice(0, 2), memory.history)
    left, replayed = replay(memory, ReplayConfig(capacity=1, fill=1.0), 2)
    assert left.held == 0
    assert replayed is None


def test_an_iteration_without_any_healthy_episode_is_remembered_as_nothing() -> None:
    memory = after({"a": [None, None]})
    assert (memory.held, memory.history.num_rows) == (0, 0)


def test_token_advantages_count_by_their_mean() -> None:
    files = iteration_files({"a": [1.0]}, 0)
    rollouts, episodes = frames(files)
    advantages = rollouts[["turn_id"]].assign(
        loss_weight=1.0, advantage=np.nan, token_advantages=[[1.0, -0.5], [-1.0, 0.5]]
    )
    memory = remember(
        empty_memory(), rollouts, episodes, advantages, rollouts["response_logprobs"], RewardConfig(), ReplayConfig(), 0
    )
    assert held(memory) == ["s0.i0.a.t0.b0.0"]


def test_advantages_of_other_rollouts_are_refused() -> None:
    rollouts, episodes = frames(iteration_files({"a": [1.0]}, 0))
    advantages = pd.DataFrame({"turn_id": ["x"], "loss_weight": [1.0], "advantage": [1.0]})
    with pytest.raises(AgentRLError, match="'x' is not in the rollouts"):
        remember(
            empty_memory(),
            *(rollouts, episodes, advantages, rollouts["response_logprobs"]),
            *(RewardConfig(), ReplayConfig(), 0),
        )


def test_a_loss_that_reads_entropies_is_refused_with_replay() -> None:
    raw = {"source": "test", "advantage": {"estimator": "group_mean"}, "loss": {"kind": "entropy_clip"}, "replay": {}}
    with pytest.raises(ValidationError, match="replayed responses do not have"):
        AlgorithmConfig.model_validate(raw)
