"""RSPO: what a loop plays, what the swap keeps, what is drawn of the buffer, and what an update is then trained on.

Of RSPO, p1 to p12 in names of tests are properties. Those of the loss are in test_moved_centre.py, of dense rewards in
test_dense_rewards.py, of loops in test_reward_swap_loops.py, and of a misaligned dense reward in
test_reward_swap_bandit.py and test_misaligned_rewards.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from chain_frames import algorithm
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from replay_runs import advantage_table, frames, iteration_files

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.reward_swap import (
    LoopCounts,
    buffer_schema,
    draw,
    draw_metrics,
    drawn_episodes,
    loop_counts,
    mixed,
    swap,
)
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.loss import MovedCentre
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.presets import load_algorithm
from agentbench_rl.training.gradients import accumulate_gradients
from agentbench_rl.training.packing import row_batches
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import training_signals
from agentbench_rl.training.trainer import trained_sequences
from agentbench_rl.types import AgentRLError, advantage_schema, rollout_schema
from tests.training.models import tiny_model

Groups = Mapping[str, Sequence[float | None]]
THREE_GROUPS: Groups = {"g1": [10] * 4, "g2": [10, 0, 0, 0], "g3": [0] * 4}
PARTS: dict[str, object] = {"schedule": {"kind": "reward_swap"}, "loss": {"kind": "moved_centre"}}


def schedule(**changes: Any) -> RewardSwap:
    return RewardSwap.model_validate({"kind": "reward_swap"} | changes)


def counts(units: int) -> LoopCounts:
    """Of a loop that draws so many episodes or groups for an update."""
    return dataclasses.replace(loop_counts(schedule(), 16, 8), units=units)


def host() -> AlgorithmConfig:
    return algorithm("group_zscore", parts=PARTS)


def credited(rollouts: pd.DataFrame, episodes: pd.DataFrame) -> pd.DataFrame:
    return compute_advantages(rollouts, episodes, host())[0]


def collected(groups: Groups, dense: float | None = None, order: np.ndarray | None = None) -> pa.Table:
    """The buffer of a loop; `dense`: the dense reward that every turn had."""
    rollouts, episodes = frames(iteration_files(groups, 0))
    rollouts = rollouts.assign(process_reward=dense)
    rollouts = rollouts if order is None else rollouts.iloc[order]
    behaviour = pd.Series([[-0.75, -0.5]] * len(rollouts))
    return swap(rollouts, episodes, behaviour, credited(rollouts, episodes))


def names(drawn: pa.Table) -> list[str]:
    return drawn["tree_id"].unique().to_pylist()


def test_p9_what_a_loop_plays(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-2 loop accounting alpha=1/8 k=3 B=16 N=8"]
    loop = loop_counts(schedule(), 16, 8)
    loops = vector["loops_for_150_steps"]
    found = {
        "on_policy_tasks_per_step": loop.fresh_tasks,
        "on_policy_traj_per_step": loop.fresh_tasks * 8,
        "off_policy_traj_per_step": loop.replayed,
        "buffer_tasks": loop.buffer_tasks,
        "buffer_traj": loop.buffer_episodes,
        "dense_phase_traj": loop.dense_episodes,
        "outcome_phase_on_traj": loop.outcome_episodes,
        "replay_draws_per_loop": loop.draws,
        "replay_fraction_of_buffer": pytest.approx(loop.draws / loop.buffer_episodes),
        "env_episodes_per_loop": loop.episodes,
        "baseline_episodes_for_same_outcome_steps": loop.baseline_episodes,
        "episode_cost_ratio": pytest.approx(loop.episodes / loop.baseline_episodes),
        "loops_for_150_steps": 150 // schedule().period,
        "total_episodes_rspo": loop.episodes * loops,
        "total_episodes_baseline": loop.baseline_episodes * loops,
    }
    assert vector == found


def test_the_policys_own_history_costs_no_episode_more() -> None:
    loop = loop_counts(schedule(source="history"), 16, 8)
    assert (loop.episodes, loop.dense_episodes, loop.buffer_tasks, loop.buffer_episodes) == (336, 0, 0, 336)


def test_a_share_of_nothing_is_the_host() -> None:
    loop = loop_counts(schedule(share=0.0), 16, 8)
    assert (loop.fresh_tasks, loop.replayed, loop.outcome_episodes) == (16, 0, loop.baseline_episodes)


@pytest.mark.parametrize(
    ("changes", "tasks", "message"),
    [
        ({"share": 0.01}, 4, "less than one episode"),
        ({"unit": "group"}, 2, "less than one group"),
        ({"share": 0.5, "buffer_tasks": 2}, 4, "draws 3 x 16 episodes without replacement, but holds 16"),
    ],
)
def test_a_loop_that_cannot_be_is_refused(changes: dict[str, Any], tasks: int, message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        loop_counts(schedule(**changes), tasks, 8)


@pytest.mark.parametrize(
    "bad",
    [{"period": 0}, {"period": 1.5}, {"share": 1.0}, {"share": -0.1}, {"share": math.nan}, {"selection": "variance"}],
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        schedule(**bad)


@pytest.mark.parametrize(
    ("parts", "estimator", "message"),
    [
        (PARTS | {"loss": {"kind": "token_clip"}}, "group_zscore", "moved_centre go together"),
        ({"loss": {"kind": "moved_centre"}}, "group_zscore", "moved_centre go together"),
        (PARTS, "mt_grpo", "has the hosts"),
        (PARTS | {"reward": {"view": "process"}}, "group_zscore", "outcome alone"),
        (PARTS | {"replay": {}}, "group_zscore", "modifiers and replay do not go with it"),
    ],
)
def test_a_host_that_would_see_dense_rewards_is_refused(parts: dict[str, Any], estimator: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        algorithm(estimator, parts=parts)


@pytest.mark.parametrize(
    ("changes", "units", "key"),
    [
        ({"ties": "order"}, 4, "A_traj_reward_then_index"),
        ({}, 4, "B_traj_reward_then_advantage"),
        ({"unit": "group", "ties": "order"}, 1, "C_group_by_mean_reward"),
        ({"unit": "group", "selection": "variance"}, 1, "D_group_by_variance"),
    ],
)
def test_what_is_drawn_of_three_groups(vectors: dict[str, Any], changes: dict[str, Any], units: int, key: str) -> None:
    vector = vectors["RSPO-3 replay selection, 3 groups x 4 trajectories, draw 4"]
    buffer = collected(THREE_GROUPS)
    trees = dict(zip([name for _, name, _ in vector["buffer"]], names(buffer), strict=True))
    stored = buffer.to_pandas().groupby("tree_id", sort=False)["swap_advantage"].first()
    assert stored.tolist() == pytest.approx(vector["A_off"], abs=1e-6)
    drawn = draw(buffer, schedule(**changes), counts(units), 0, [0])
    wanted = vector[key]
    expected = wanted if isinstance(wanted, list) else [name for group, name, _ in vector["buffer"] if group == wanted]
    assert set(names(drawn)) == {trees[name] for name in expected}
    advantages = [stored[tree] for tree in names(drawn)]
    if f"{key[0]}_sum_abs_adv" in vector:
        assert np.abs(advantages).sum() == pytest.approx(vector[f"{key[0]}_sum_abs_adv"], abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    returns=st.lists(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=3, max_size=3), min_size=2, max_size=3),
    units=st.integers(1, 4),
    changes=st.fixed_dictionaries({"ties": st.sampled_from(["advantage", "order"]), "positive_only": st.booleans()}),
    seed=st.integers(0, 99),
)
def test_p7_the_best_outcomes_are_drawn_each_once_whatever_the_order_of_the_rows(
    returns: list[list[float]], units: int, changes: dict[str, Any], seed: int
) -> None:
    groups = {f"g{number}": values for number, values in enumerate(returns)}
    size = sum(map(len, returns))
    buffer = collected(groups)
    shuffled = collected(groups, order=np.random.default_rng(seed).permutation(2 * size))
    assert shuffled.equals(buffer)
    allowed = {
        tree: value
        for group, values in groups.items()
        for tree, value in ((f"s0.i0.{group}.t{number}", value) for number, value in enumerate(values))
        if not changes["positive_only"] or value >= np.mean(values) - 1e-9
    }
    drawn = [names(draw(buffer, schedule(**changes), counts(units), update, [0])) for update in range(3)]
    flat = [tree for one in drawn for tree in one]
    assert len(set(flat)) == len(flat) == min(3 * units, len(allowed))
    best = sorted(allowed.values(), reverse=True)[: len(flat)]
    assert sorted((allowed[tree] for tree in flat), reverse=True) == best
    assert min((allowed[tree] for tree in drawn[0]), default=1) >= max((allowed[tree] for tree in drawn[1]), default=0)


def test_with_replacement_the_same_best_ones_come_again_and_random_ones_differ() -> None:
    buffer = collected(THREE_GROUPS)
    again = schedule(replacement=True)
    drawn = [names(draw(buffer, again, counts(2), update, [0])) for update in (0, 1)]
    assert drawn[0] == drawn[1]
    anyone = schedule(replacement=True, selection="random")
    drawn = [names(draw(buffer, anyone, counts(2), update, [0])) for update in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    once = schedule(selection="random")
    parts = [names(draw(buffer, once, counts(4), update, [7])) for update in range(3)]
    assert sorted(tree for part in parts for tree in part) == sorted(names(buffer))
    assert parts[0] != names(buffer)[:4]


def test_the_swap_leaves_out_faults_and_keeps_whole_episodes() -> None:
    buffer = collected({"g": [1.0, None, 0.0]})
    assert names(buffer) == ["s0.i0.g.t0", "s0.i0.g.t2"]
    assert buffer["swap_return"].to_pylist() == [1.0, 1.0, 0.0, 0.0]
    assert buffer["swap_behaviour_logprobs"].to_pylist() == [[-0.75, -0.5]] * 4
    assert buffer.schema.equals(buffer_schema())
    rows = buffer.to_pandas().query("tree_id == 's0.i0.g.t0'")
    metrics = draw_metrics(buffer, draw(buffer, schedule(), counts(1), 0, [0]))
    assert metrics == {
        "buffer_episodes": 2.0,
        "buffer_return_mean": 0.5,
        "replayed_episodes": 1.0,
        "replayed_return_mean": 1.0,
        "replayed_negative_share": 0.0,
        "replayed_zero_share": 0.0,
        "replayed_distinct_states": float(len({*rows["state_key"], *rows["next_state_key"]})),
    }


def test_an_empty_buffer_leaves_the_fresh_responses_with_their_full_weight() -> None:
    buffer = collected({"g": [None, None]})
    drawn = draw(buffer, schedule(), counts(4), 0, [0])
    own = advantage_table(credited(*frames(iteration_files({"g": [0.0, 1.0]}, 1))))
    assert len(buffer) == len(drawn) == 0
    assert mixed(own, drawn, schedule()).equals(own)
    assert draw_metrics(buffer, drawn) == {"buffer_episodes": 0.0, "replayed_episodes": 0.0}


def outcome_update(dense: np.random.Generator | None, groups: Groups = THREE_GROUPS) -> tuple[pa.Table, torch.Tensor]:
    """Advantages of an update, and the gradient of a model; `dense`: random dense rewards of all episodes."""
    rollouts, episodes = frames(iteration_files({"g": [0.0, 1.0, 1.0, 0.0]}, 1))
    explored, explored_episodes = frames(iteration_files(groups, 0))
    if dense is not None:
        rollouts = rollouts.assign(process_reward=dense.uniform(-1, 1, len(rollouts)))
        explored = explored.assign(process_reward=dense.uniform(-1, 1, len(explored)))
    behaviour = pd.Series([[-0.75, -0.5]] * len(explored))
    buffer = swap(explored, explored_episodes, behaviour, credited(explored, explored_episodes))
    drawn = draw(buffer, schedule(), counts(4), 0, [0])
    both = mixed(advantage_table(credited(rollouts, episodes)), drawn, schedule())
    every = pd.concat([rollouts, drawn.select(rollout_schema().names).to_pandas()], ignore_index=True)
    old = pd.DataFrame({"turn_id": every["turn_id"], "old_logprobs": [[-1.0, -1.0]] * len(every)})
    signals = training_signals(every, old, both.to_pandas(), "recompute", reference=False)
    model = tiny_model()
    batches = row_batches(trained_sequences(training_sequences(every), signals), 64)
    accumulate_gradients({"policy": model}, {"policy": batches}, signals, MovedCentre(kl_coefficient=0), "float32")
    return both, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_p1_dense_rewards_never_reach_an_outcome_update() -> None:
    both, gradient = outcome_update(None)
    assert gradient.any()
    for seed in range(3):
        again, other = outcome_update(np.random.default_rng(seed))
        assert again.equals(both)
        assert torch.equal(other, gradient)


def test_p10_equal_outcomes_within_each_group_teach_nothing() -> None:
    both, _ = outcome_update(None, {"g1": [1.0] * 4, "g2": [0.0] * 4})
    replayed = both.filter(pc.is_valid(both["source"]))
    assert len(replayed) == 8
    assert not any(replayed["advantage"].to_pylist())


@pytest.mark.parametrize(("mix", "weights"), [("weighted", (0.875, 0.125)), ("concat", (None, None))])
def test_rows_of_an_update_say_where_they_come_from_and_what_they_weigh(mix: str, weights: tuple[Any, Any]) -> None:
    buffer = collected(THREE_GROUPS)
    drawn = draw(buffer, schedule(), counts(2), 0, [0])
    own = advantage_table(credited(*frames(iteration_files({"g": [0.0, 1.0]}, 1))))
    both = mixed(own, drawn, schedule(mix=mix))
    assert both.schema.equals(advantage_schema())
    assert both["turn_id"].to_pylist() == own["turn_id"].to_pylist() + drawn["turn_id"].to_pylist()
    assert both["source"].to_pylist() == [None] * 4 + ["replay"] * 4
    assert both["source_weight"].to_pylist() == [weights[0]] * 4 + [weights[1]] * 4
    assert both["behaviour_logprobs"].to_pylist() == [None] * 4 + [[-0.75, -0.5]] * 4


def critic_update(values: list[float], **changes: Any) -> pa.Table:
    """A replayed success of three turns, one token each, whose advantages the critic tells beside a fresh episode's."""
    rollouts, episodes = frames(iteration_files({"g": [10.0]}, 0))
    rows = [rollouts.iloc[[0]], rollouts.iloc[[0]], rollouts.iloc[[1]]]
    turns = [f"e.{step}" for step in range(3)]
    explored = pd.concat(rows, ignore_index=True).assign(
        turn_id=turns, event_id=turns, parent_id=[None, *turns[:2]], step=range(3), process_reward=[0.9, -0.9, 0.5]
    )
    explored["response_ids"] = [[8]] * 3
    ended = episodes.assign(leaf_turn_id="e.2", length=3)
    buffer = swap(explored, ended, pd.Series([[-0.5]] * 3), None)
    drawn = draw(buffer, schedule(), counts(1), 0, [0])
    fresh, fresh_episodes = frames(iteration_files({"g": [0.0]}, 1))
    every = pd.concat([fresh, drawn.select(rollout_schema().names).to_pandas()], ignore_index=True)
    lengths = every["response_ids"].map(len)
    told = [[0.0] * length for length in lengths[:2]] + [[value] for value in values]
    scores = pd.DataFrame({"turn_id": every["turn_id"], "values": told})
    method = algorithm("gae", whiten=False, parts=PARTS | {"critic": {}})
    both, _ = compute_advantages(every, pd.concat([fresh_episodes, drawn_episodes(drawn)]), method, scores)
    return mixed(advantage_table(both), drawn, schedule(**changes))


def test_the_current_critic_tells_the_advantages_of_replayed_episodes(vectors: dict[str, Any]) -> None:
    vector = vectors["RSPO-8 PPO plug-in: GAE on a replayed success with the current outcome critic"]
    both = critic_update(vector["V_current"]).slice(2)
    advantages = [value for row in both["token_advantages"].to_pylist() for value in row]
    assert advantages == pytest.approx(vector["A_raw"][0], abs=1e-6)
    assert both["source"].to_pylist() == ["replay"] * 3
    assert both["value_targets"].to_pylist() == [[10.0]] * 3
    assert both["behaviour_logprobs"].to_pylist() == [[-0.5]] * 3


def test_the_critic_may_leave_replayed_episodes_alone() -> None:
    both = critic_update([4.0, 5.0, 6.0], critic_on_replay=False)
    assert both["value_targets"].to_pylist()[:2] == [[0.0, 0.0]] * 2
    assert both["value_targets"].to_pylist()[2:] == [None] * 3


def test_where_selection_leaves_nothing_of_what_a_critic_would_credit_the_fresh_responses_have_their_full_weight() -> (
    None
):
    rollouts, episodes = frames(iteration_files({"g": [1.0]}, 0))
    buffer = swap(rollouts.assign(valid=False), episodes, pd.Series([[-0.5, -0.5]] * 2), None)
    drawn = draw(buffer, schedule(), counts(1), 0, [0])
    fresh, fresh_episodes = frames(iteration_files({"g": [0.0]}, 1))
    every = pd.concat([fresh, drawn.select(rollout_schema().names).to_pandas()], ignore_index=True)
    scores = pd.DataFrame({"turn_id": every["turn_id"], "values": [[0.0, 0.0]] * len(every)})
    method = algorithm("gae", parts=PARTS | {"critic": {}, "selection": {"drop_invalid": True}})
    both, _ = compute_advantages(every, pd.concat([fresh_episodes, drawn_episodes(drawn)]), method, scores)
    assert len(drawn) == 2
    own = advantage_table(both)
    assert own["turn_id"].to_pylist() == fresh["turn_id"].tolist()
    assert mixed(own, drawn, schedule()).equals(own)


def test_a_drawn_response_without_an_advantage_among_others_with_one_is_refused() -> None:
    buffer = collected({"g": [1.0, 0.0]})
    column = pa.array([None, *buffer["swap_advantage"].to_pylist()[1:]], pa.float32())
    broken = buffer.set_column(buffer.schema.get_field_index("swap_advantage"), "swap_advantage", column)
    with pytest.raises(AgentRLError, match="some of the drawn responses have no stored advantage"):
        mixed(advantage_schema().empty_table(), broken, schedule())


@pytest.mark.parametrize("name", ["rspo-grpo", "rspo-gigpo", "rspo-ppo"])
def test_presets_are_their_host_with_the_exact_objective(name: str) -> None:
    method, host_method = load_algorithm(name), load_algorithm(name.removeprefix("rspo-"))
    placement = "turn" if name == "rspo-ppo" else "last"
    assert method.schedule == schedule(dense_placement=placement)
    assert isinstance(method.loss, MovedCentre)
    assert method.loss.model_dump(exclude={"kind", "dual_clip_replayed"}) == host_method.loss.model_dump(
        exclude={"kind"}
    )
    same = {"source", "schedule", "loss"}
    assert method.model_dump(exclude=same) == host_method.model_dump(exclude=same)
