"""Self-imitation replay (SPEAR, arXiv 2509.22601, section 3.2): earlier responses with a positive advantage, again.

A = R - P50(means of the groups so far) [/ P50(stds of the groups so far)], responses with A < 0 are dropped; their
loss has the weight (1 - cos(pi t / warmup)) / 2, then 1. R is the scaled return of the whole episode. As in the
published code the memory is looked at before an iteration's own responses join it, and stds are population stds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa

from agentbench_rl.algorithms.frames import complete_episodes, complete_rollouts
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.algorithms.rewards import episode_returns
from agentbench_rl.algorithms.trajectories import TrajectoryRows, trajectory_rows
from agentbench_rl.config.algorithm import ReplayConfig, RewardConfig
from agentbench_rl.types import GREEDY, INFRASTRUCTURE_ENDINGS, AgentRLError, advantage_schema, rollout_schema

_IDS = ("turn_id", "parent_id", "event_id", "tree_id", "group_id")


@dataclass(frozen=True)
class Memory:
    """Responses held, the oldest first, and the groups that the baseline is taken of, the oldest first.

    turns: columns of `turn_memory_schema`, whole episodes; history: columns of `history_schema`.
    """

    turns: pa.Table
    history: pa.Table

    @property
    def held(self) -> int:
        """Responses that would be replayed; the others are their context."""
        return int(np.count_nonzero(self.turns["replay_weight"].to_numpy()))


@dataclass(frozen=True)
class Replayed:
    """turns: whole episodes in the columns of rollouts.parquet; advantages: of those of their responses that train."""

    turns: pa.Table
    advantages: pa.Table


@cache
def turn_memory_schema() -> pa.Schema:
    """Columns of rollouts.parquet, and of each response its iteration, R, loss weight (0: context), old log-probs."""
    own = [
        pa.field("replay_iteration", pa.int32(), nullable=False),
        pa.field("replay_return", pa.float64(), nullable=False),
        pa.field("replay_weight", pa.float32(), nullable=False),
        pa.field("replay_old_logprobs", pa.list_(pa.float32()), nullable=False),
    ]
    schema = rollout_schema()
    return pa.schema([*schema, *own], metadata=schema.metadata)


@cache
def history_schema() -> pa.Schema:
    """One row per group: mean and population std of the scaled returns of its episodes."""
    names = ("group_mean", "group_std")
    return pa.schema([pa.field(name, pa.float64(), nullable=False) for name in names], rollout_schema().metadata)


def empty_memory() -> Memory:
    """What is held before the first iteration."""
    return Memory(turn_memory_schema().empty_table(), history_schema().empty_table())


def replay_weight(iteration: int, warmup: int) -> float:
    """Weight of the replay loss: (1 - cos(pi t / warmup)) / 2 up to t = warmup, then 1."""
    return (1.0 - math.cos(math.pi * min(iteration, warmup) / warmup)) / 2.0


def recalibrated(returns: np.ndarray, means: np.ndarray, stds: np.ndarray | None = None) -> np.ndarray:
    """Advantages of stored returns [n] against the medians of group means [G] and stds [G]; a median std of 0 is 1."""
    centred = np.asarray(returns - np.percentile(means, 50))
    spread = 0.0 if stds is None else float(np.percentile(stds, 50))
    return centred / (spread + 1e-6) if spread > 0.0 else centred


def forget(memory: Memory, settings: ReplayConfig, iteration: int) -> Memory:
    """Drop responses that are more than `max_age` iterations old."""
    recent = iteration - memory.turns["replay_iteration"].to_numpy() <= settings.max_age
    return Memory(memory.turns.filter(pa.array(recent)), memory.history)


def replay(memory: Memory, settings: ReplayConfig, iteration: int) -> tuple[Memory, Replayed | None]:
    """Empty a memory that holds more than fill x capacity, and replay the newest `capacity` responses with A >= 0.

    None: the memory is not full enough, or holds no such response.
    """
    if memory.held <= settings.fill * settings.capacity:
        return memory, None
    turns = memory.turns
    stds = memory.history["group_std"].to_numpy() if settings.divide_by_std else None
    advantages = recalibrated(turns["replay_return"].to_numpy(), memory.history["group_mean"].to_numpy(), stds)
    trained = np.flatnonzero((turns["replay_weight"].to_numpy() > 0) & (advantages >= 0.0))[-settings.capacity :]
    emptied = Memory(turns.slice(0, 0), memory.history)
    if not len(trained):
        return emptied, None
    trees = pd.MultiIndex.from_arrays([turns[name].to_pandas() for name in ("replay_iteration", "tree_id")])
    rows = turns.filter(pa.array(trees.isin(trees[trained])))
    prefix = f"replay.{iteration}."
    for name in _IDS:
        rows = rows.set_column(rows.column_names.index(name), name, _prefixed(rows[name], prefix))
    weight = replay_weight(iteration, settings.warmup_iterations)
    credited = _credit(turns.take(pa.array(trained)), advantages[trained], weight, prefix)
    schema = rollout_schema()
    episodes = rows.select(schema.names).cast(schema).replace_schema_metadata(schema.metadata)
    return emptied, Replayed(episodes, credited)


def remember(
    memory: Memory,
    rollouts: pd.DataFrame,
    episodes: pd.DataFrame,
    advantages: pd.DataFrame,
    old_logprobs: pd.Series,
    reward: RewardConfig,
    settings: ReplayConfig,
    iteration: int,
) -> Memory:
    """Add the episodes that hold a response with a positive advantage, and the statistics of all credited groups.

    `old_logprobs` are those of the rollouts' rows. What is added does not depend on the order of the rows.
    """
    columns, rollouts = rollouts, complete_rollouts(rollouts)
    sampled = _sampled(rollouts, complete_episodes(episodes))
    rows = trajectory_rows(rollouts, sampled)
    returns = reward.scale * episode_returns(rollouts, sampled, rows, reward.view)
    weight, positive = _credited(rollouts, advantages)
    members = np.bincount(rows.row, minlength=len(rollouts))
    shared = np.bincount(rows.row, returns[rows.episode], len(rollouts)) / np.maximum(members, 1)
    good = np.bincount(rows.episode, positive[rows.row], len(sampled)) > 0
    held = np.unique(rows.row[good[rows.episode]])
    order = rollouts.iloc[held].sort_values(["task_id", "tree_id", "branch", "step", "member", "turn_id"]).index
    added = columns.reset_index(drop=True).loc[order, rollout_schema().names]
    added = added.assign(
        replay_iteration=iteration,
        replay_return=shared[order],
        replay_weight=np.where(positive, weight, 0.0)[order],
        replay_old_logprobs=old_logprobs.reset_index(drop=True).loc[order],
    )
    schema = turn_memory_schema()
    turns = pa.Table.from_pandas(added, schema=schema, preserve_index=False).replace_schema_metadata(schema.metadata)
    history = pa.concat_tables([memory.history, _groups(rollouts, rows, returns, weight)])
    newest = history.slice(max(0, len(history) - settings.history))
    return Memory(pa.concat_tables([memory.turns, turns]), newest)


def _credit(responses: pa.Table, advantages: np.ndarray, weight: float, prefix: str) -> pa.Table:
    """Rows of advantages.parquet for responses [n] of the memory."""
    columns = {
        "turn_id": _prefixed(responses["turn_id"], prefix),
        "event_id": _prefixed(responses["event_id"], prefix),
        "loss_weight": responses["replay_weight"],
        "advantage": pa.array(advantages, pa.float32()),
        "old_logprobs": responses["replay_old_logprobs"],
        "source": pa.array(["replay"] * len(advantages), pa.string()),
        "source_weight": pa.array(np.full(len(advantages), weight), pa.float32()),
    }
    schema = advantage_schema()
    absent = {field.name: pa.nulls(len(advantages), field.type) for field in schema}
    return pa.table({name: (absent | columns)[name] for name in schema.names}, schema=schema)


def _sampled(rollouts: pd.DataFrame, episodes: pd.DataFrame) -> pd.DataFrame:
    """Episodes without an infrastructure fault that are no greedy baseline."""
    counted = ~episodes["ending"].isin([str(ending) for ending in INFRASTRUCTURE_ENDINGS])
    if GREEDY in rollouts:
        counted &= ~episodes["leaf_turn_id"].isin(rollouts.loc[rollouts[GREEDY].astype(bool), "turn_id"])
    return episodes[counted].reset_index(drop=True)


def _credited(rollouts: pd.DataFrame, advantages: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Loss weight of every row [rows], 0 where it is not trained, and whether its mean advantage is positive [rows]."""
    place = pd.Index(rollouts["turn_id"]).get_indexer(pd.Index(advantages["turn_id"]))
    if (place < 0).any():
        turn = advantages["turn_id"].iloc[int(np.argmax(place < 0))]
        raise AgentRLError(f"advantages: turn {turn!r} is not in the rollouts; both must come from the same rollout")
    weight, advantage = np.zeros(len(rollouts)), np.zeros(len(rollouts))
    weight[place] = advantages["loss_weight"]
    values = advantages["advantage"]
    if values.isna().any():
        values = values.where(values.notna(), advantages["token_advantages"].map(np.mean, na_action="ignore"))
    advantage[place] = values
    return weight, (advantage > 0.0) & (weight > 0.0)


def _groups(rollouts: pd.DataFrame, rows: TrajectoryRows, returns: np.ndarray, weight: np.ndarray) -> pa.Table:
    """Statistics of the groups that hold a trained response, in the order of their ids."""
    if not len(rows.row):
        return history_schema().empty_table()
    group = pd.factorize(rollouts["group_id"].iloc[rows.row], sort=True)[0]
    statistics = group_statistics(returns[rows.episode], group, rows.first)
    kept = np.bincount(group, weight[rows.row] > 0) > 0
    population = statistics.std * np.sqrt((statistics.count - 1) / statistics.count)
    return pa.table([statistics.mean[kept], population[kept]], schema=history_schema())


def _prefixed(ids: pa.ChunkedArray, prefix: str) -> pa.Array:
    return pa.array([None if one is None else prefix + one for one in ids.to_pylist()], pa.string())
