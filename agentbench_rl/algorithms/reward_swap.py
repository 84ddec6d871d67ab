"""RSPO (arXiv 2607.04713): what a loop plays, the buffer of swapped episodes, and what an outcome update draws of it.

The swap: of an episode that the explorer played, its actions, their log-probs under the explorer, the outcome and the
advantage that the outcome has among the explorer's own groups are kept; every dense reward is dropped. An outcome
update maximises (1 - share) J_fresh + share J_replayed (equation 4), each over its own responses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from agentbench_rl.algorithms.frames import complete_episodes, complete_rollouts
from agentbench_rl.algorithms.rewards import episode_returns
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config.algorithm import RewardView
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS, AgentRLError, advantage_schema, rollout_schema

_SOURCE = "replay"


@dataclass(frozen=True)
class LoopCounts:
    """Tasks and episodes of one loop.

    fresh_tasks: of every update, dense or outcome; units: episodes, or groups, drawn for an outcome update, and
    replayed: the episodes that they are; buffer_tasks: collected, 0 where the policy's own history is drawn from.
    """

    fresh_tasks: int
    units: int
    replayed: int
    buffer_tasks: int
    dense_episodes: int
    buffer_episodes: int
    outcome_episodes: int
    draws: int
    baseline_episodes: int

    @property
    def episodes(self) -> int:
        """Episodes played in a loop; `baseline_episodes` are those of as many updates of the host."""
        collected = self.buffer_episodes if self.buffer_tasks else 0
        return self.dense_episodes + collected + self.outcome_episodes


def loop_counts(schedule: RewardSwap, tasks: int, group_size: int) -> LoopCounts:
    """Count a loop of a method whose host trains on `tasks` groups per update.

    Raises AgentRLError when the share asks for less than one episode (or group), or for more than is collected.
    """
    fresh = tasks - math.floor(schedule.share * tasks + 1e-9)
    size = group_size if schedule.unit == "group" else 1
    units = round(schedule.share * tasks * group_size / size)
    if schedule.share > 0 and units == 0:
        raise AgentRLError(
            f"schedule.share {schedule.share} of {tasks} tasks with {group_size} episodes each is less than one "
            f"{schedule.unit}: raise it, or set it to 0"
        )
    explores = schedule.source != "history"
    collected = (schedule.buffer_tasks or 2 * fresh) if explores else 0
    played = schedule.period * fresh * group_size
    held = collected * group_size if explores else played
    draws = schedule.period * units * size
    if draws > held and not schedule.replacement:
        raise AgentRLError(
            f"schedule: a loop draws {schedule.period} x {units * size} episodes without replacement, but holds "
            f"{held}: raise schedule.buffer_tasks, or lower schedule.share or schedule.period"
        )
    return LoopCounts(
        fresh_tasks=fresh,
        units=units,
        replayed=units * size,
        buffer_tasks=collected,
        dense_episodes=played if explores else 0,
        buffer_episodes=held,
        outcome_episodes=played,
        draws=draws,
        baseline_episodes=schedule.period * tasks * group_size,
    )


@cache
def buffer_schema() -> pa.Schema:
    """Columns of rollouts.parquet (process_reward is null in every row), and of each response what the swap keeps.

    swap_return: outcome of its episode, unscaled; swap_advantage: null where a critic will tell; swap_weight: loss
    weight, 0: context; swap_behaviour_logprobs: of its tokens under the policy that sampled them.
    """
    own = [
        pa.field("swap_return", pa.float64(), nullable=False),
        pa.field("swap_advantage", pa.float32()),
        pa.field("swap_weight", pa.float32(), nullable=False),
        pa.field("swap_behaviour_logprobs", pa.list_(pa.float32()), nullable=False),
    ]
    schema = rollout_schema()
    return pa.schema([*schema, *own], metadata=schema.metadata)


def swap(
    rollouts: pd.DataFrame,
    episodes: pd.DataFrame,
    behaviour: pd.Series,
    advantages: pd.DataFrame | None,
    view: RewardView = "outcome",
) -> pa.Table:
    """Buffer of the episodes (chains) without an infrastructure fault; it does not depend on the order of the rows.

    behaviour: log-probs of the rollouts' rows under the policy that sampled them. advantages: rows of the outcome's
    advantages (advantages.parquet); None: a critic tells them when the episodes are drawn. Raises AgentRLError for a
    return that is not known.
    """
    columns, completed = rollouts.reset_index(drop=True), complete_rollouts(rollouts)
    played = complete_episodes(episodes)
    fault = played["ending"].isin([str(ending) for ending in INFRASTRUCTURE_ENDINGS])
    sampled = played[~fault].reset_index(drop=True)
    rows = trajectory_rows(completed, sampled)
    returns = np.zeros(len(completed))
    returns[rows.row] = episode_returns(completed, sampled, rows, view)[rows.episode]
    weight, advantage = _stored(completed["turn_id"], advantages)
    keys = ["task_id", "tree_id", "branch", "step", "member", "turn_id"]
    order = completed.iloc[np.unique(rows.row)].sort_values(keys).index
    kept = columns.loc[order, [name for name in rollout_schema().names if name != "process_reward"]].assign(
        process_reward=None,
        swap_return=returns[order],
        swap_advantage=advantage[order],
        swap_weight=weight[order],
        swap_behaviour_logprobs=behaviour.reset_index(drop=True).loc[order],
    )
    schema = buffer_schema()
    table = pa.Table.from_pandas(kept[schema.names], schema=schema, preserve_index=False)
    return table.replace_schema_metadata(schema.metadata)


def draw(buffer: pa.Table, schedule: RewardSwap, counts: LoopCounts, update: int, seed: Sequence[int]) -> pa.Table:
    """Rows of the buffer's episodes that outcome update `update` (0 ... period - 1) of a loop is trained on too.

    seed: non-negative numbers that name the loop, for selection: random. Without replacement the updates of a loop
    share one ranking, and each takes the next ones of it: a small buffer may have fewer left than asked for, or none.
    """
    episodes = _episodes(buffer)
    key = "group" if schedule.unit == "group" else "tree"
    ranked = _ranked(episodes, schedule, key, [*seed, update] if schedule.replacement else list(seed))
    first = 0 if schedule.replacement else update * counts.units
    chosen = ranked[first : first + counts.units]
    trees = episodes.loc[episodes[key].isin(chosen) & _candidates(episodes, schedule), "tree"]
    return buffer.filter(pc.is_in(buffer["tree_id"], pa.array(trees, pa.string())))


def draw_metrics(buffer: pa.Table, drawn: pa.Table) -> dict[str, float]:
    """Episodes held and drawn, their mean outcomes, and of the drawn ones the shares below and at their group's mean.

    replayed_distinct_states: that the drawn ones visit.
    """
    held, taken = _episodes(buffer), _episodes(drawn)
    # A drawn episode's group may be in the buffer only: its advantage is told there.
    advantage = held.loc[held["tree"].isin(taken["tree"]), "advantage"]
    metrics = {"buffer_episodes": float(len(held)), "replayed_episodes": float(len(taken))}
    if len(held):
        metrics["buffer_return_mean"] = float(held["outcome"].mean())
    if len(taken):
        metrics["replayed_return_mean"] = float(taken["outcome"].mean())
        metrics["replayed_negative_share"] = float((advantage < 0).mean())
        metrics["replayed_zero_share"] = float((advantage == 0).mean())
        states = drawn.select(["state_key", "next_state_key"]).to_pydict()
        metrics["replayed_distinct_states"] = float(len({key for keys in states.values() for key in keys}))
    return metrics


def drawn_episodes(drawn: pa.Table) -> pd.DataFrame:
    """Rows of episodes.parquet, as far as advantages need them, of the drawn episodes."""
    leaves = drawn.filter(pc.is_valid(drawn["ending"]))
    names = {"tree_id": "episode_id", "turn_id": "leaf_turn_id", "ending": "ending", "swap_return": "return"}
    return pd.DataFrame({name: leaves[column].to_pandas() for column, name in names.items()})


def mixed(advantages: pa.Table, drawn: pa.Table, schedule: RewardSwap) -> pa.Table:
    """Advantages of an outcome update (columns of advantages.parquet): the fresh responses', and the drawn ones'.

    advantages: of the fresh responses, with a critic of the drawn ones too; without, these have the advantages that
    they were stored with. Where nothing was drawn, or nothing drawn is to be trained on (`selection`), the fresh
    responses are all there is, with their full weight.
    """
    told = pc.is_in(advantages["turn_id"], drawn["turn_id"])
    by_critic = drawn["swap_advantage"].null_count == len(drawn)
    credited = advantages.filter(told) if by_critic else _stored_credit(drawn)
    if not len(credited):
        return advantages
    weights = (1.0 - schedule.share, schedule.share) if schedule.mix == "weighted" else (None, None)
    own = advantages.filter(pc.invert(told))
    own = _with(own, {"source_weight": _constant(len(own), weights[0], pa.float32())})
    place = pc.index_in(credited["turn_id"], drawn["turn_id"])
    marks = {
        "source": _constant(len(credited), _SOURCE, pa.string()),
        "source_weight": _constant(len(credited), weights[1], pa.float32()),
        "behaviour_logprobs": drawn["swap_behaviour_logprobs"].take(place),
    }
    if not schedule.critic_on_replay:
        marks["value_targets"] = pa.nulls(len(credited), credited.schema.field("value_targets").type)
    return pa.concat_tables([own, _with(credited, marks)])


def _stored(turns: pd.Series, advantages: pd.DataFrame | None) -> tuple[np.ndarray, np.ndarray]:
    """Loss weight and advantage (NaN: not known) of every row [rows]."""
    unknown = np.full(len(turns), np.nan)
    if advantages is None:
        return np.ones(len(turns)), unknown
    place = pd.Index(turns).get_indexer(pd.Index(advantages["turn_id"]))
    if (place < 0).any():
        turn = advantages["turn_id"].iloc[int(np.argmax(place < 0))]
        raise AgentRLError(f"advantages: turn {turn!r} is not in the rollouts; both must come from the same rollout")
    weight = np.zeros(len(turns))
    weight[place] = advantages["loss_weight"]
    unknown[place] = advantages["advantage"]
    lost = np.flatnonzero((weight > 0) & ~np.isfinite(unknown))
    if len(lost):
        raise AgentRLError(f"advantages: turn {turns.iloc[int(lost[0])]!r} has no finite advantage to be stored")
    return weight, unknown


def _stored_credit(drawn: pa.Table) -> pa.Table:
    """Rows of advantages.parquet for the drawn responses that train, with the advantages they were stored with."""
    trained = drawn.filter(pc.greater(drawn["swap_weight"], 0.0))
    if trained["swap_advantage"].null_count:
        raise AgentRLError(
            "some of the drawn responses have no stored advantage, and others have one: the buffer is of hosts with "
            "and without a critic; run its stage `swap` again"
        )
    schema = advantage_schema()
    columns = {field.name: pa.nulls(len(trained), field.type) for field in schema}
    columns |= {"turn_id": trained["turn_id"], "event_id": trained["event_id"]}
    columns |= {"loss_weight": trained["swap_weight"], "advantage": trained["swap_advantage"]}
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _episodes(buffer: pa.Table) -> pd.DataFrame:
    """Of every episode, in the buffer's order: tree, group, outcome, its advantage, and whether it can teach.

    The advantage is the mean over its trained responses, or where a critic will tell it the outcome less its group's
    mean.
    """
    names = ["tree_id", "group_id", "swap_return", "swap_advantage", "swap_weight"]
    rows = buffer.select(names).to_pandas().set_axis(["tree", "group", "outcome", "advantage", "weight"], axis=1)
    by_critic = bool(rows["advantage"].isna().all())
    rows["advantage"] = rows["advantage"].astype(np.float64).where(rows["weight"] > 0)
    episodes = rows.groupby("tree", sort=False).agg(
        group=("group", "first"),
        outcome=("outcome", "first"),
        advantage=("advantage", "mean"),
        weight=("weight", "sum"),
    )
    if by_critic:
        episodes["advantage"] = episodes["outcome"] - episodes.groupby("group")["outcome"].transform("mean")
    # Means of equal numbers may differ in their last bits, which must not decide a tie.
    rounded: pd.DataFrame = episodes.assign(advantage=episodes["advantage"].round(6)).reset_index()
    return rounded


def _candidates(episodes: pd.DataFrame, schedule: RewardSwap) -> pd.Series:
    """Which episodes may be drawn."""
    teaching = episodes["weight"] > 0
    return teaching & (episodes["advantage"] >= 0) if schedule.positive_only else teaching


def _ranked(episodes: pd.DataFrame, schedule: RewardSwap, key: str, seed: Sequence[int]) -> list[str]:
    """Names of all episodes or groups that may be drawn, the first ones to be drawn first."""
    signal = episodes["advantage"].abs() if key == "group" else episodes["advantage"]
    grouped = episodes.assign(signal=signal, variance=episodes["outcome"]).groupby(key, sort=False)
    units = grouped.agg(reward=("outcome", "mean"), variance=("variance", "var"), signal=("signal", "mean"))
    units = units[units.index.isin(episodes.loc[_candidates(episodes, schedule), key])]
    if schedule.selection == "random":
        return [str(units.index[place]) for place in np.random.default_rng(seed).permutation(len(units))]
    keys = [schedule.selection, *(["signal"] if schedule.ties == "advantage" else [])]
    ranked = units.round(9).fillna({"variance": 0.0}).sort_values(keys, ascending=False, kind="stable")
    return [str(name) for name in ranked.index]


def _with(table: pa.Table, columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """The table with some of its columns exchanged."""
    for name, column in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column)
    return table


def _constant(length: int, value: object, kind: pa.DataType) -> pa.Array:
    return pa.array([value] * length, kind)
