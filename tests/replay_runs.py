"""Iterations of a made-up run in the columns of the contract, to drive replay without a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from agentbench_rl.types import advantage_schema, episode_schema, rollout_schema, score_schema

TURNS = 2
Returns = Mapping[str, Sequence[float | None]]


def iteration_files(
    returns: Returns, iteration: int, *, greedy: Mapping[str, float] | None = None
) -> dict[str, pa.Table]:
    """Rollouts, episodes and scores of an iteration: groups of returns by task, two turns per episode.

    None is the return of an episode that ended in an infrastructure fault; `greedy` adds the return of a baseline.
    """
    turns: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    for task, values in returns.items():
        group = f"s0.i{iteration}.{task}"
        played = [(f"{group}.t{replica}", value) for replica, value in enumerate(values)]
        if greedy is not None:
            played.append((f"{group}.greedy", greedy[task]))
        for tree, value in played:
            turns += [_turn(tree, group, task, step, value, iteration) for step in range(TURNS)]
            episodes.append(_episode(tree, group, task, value))
    rollouts = pa.Table.from_pylist(turns, schema=rollout_schema())
    if greedy is not None:
        marks = pa.array([turn["tree_id"].endswith(".greedy") for turn in turns])
        rollouts = rollouts.append_column("chains_greedy", marks)
    old = [{"turn_id": turn["turn_id"], "old_logprobs": [-0.25] * len(turn["response_ids"])} for turn in turns]
    scores = pa.Table.from_pylist(old, schema=score_schema())
    return {"rollouts": rollouts, "episodes": pa.Table.from_pylist(episodes, schema=episode_schema()), "scores": scores}


def _turn(tree: str, group: str, task: str, step: int, value: float | None, iteration: int) -> dict[str, Any]:
    last = step == TURNS - 1
    turn, before = f"{tree}.b0.{step}", f"{tree}.b0.{step - 1}"
    return {
        "turn_id": turn,
        "parent_id": before if step else None,
        "task_id": task,
        "task_type": "errand",
        "group_id": group,
        "tree_id": tree,
        "branch": 0,
        "step": step,
        "event_id": turn,
        "event_type": "act",
        "event_size": 1,
        "member": 0,
        "policy": "policy",
        "policy_version": iteration,
        "prompt_ids": [5, 6, 7],
        "extends_parent": step > 0,
        "response_ids": [8, 9],
        "response_logprobs": [-0.5, -0.5],
        "state_key": turn,
        "next_state_key": turn,
        "anchor_key": turn,
        "action": "look",
        "observation": "seen",
        "tool_calls": 0,
        "valid": True,
        "done": last,
        "ending": "success" if last else None,
        "reward": None if value is None else value * last,
    }


def _episode(tree: str, group: str, task: str, value: float | None) -> dict[str, Any]:
    return {
        "episode_id": f"{tree}.b0",
        "leaf_turn_id": f"{tree}.b0.{TURNS - 1}",
        "task_id": task,
        "task_type": "errand",
        "group_id": group,
        "tree_id": tree,
        "length": TURNS,
        "sampled_tokens": 4,
        "prompt_tokens": 6,
        "return": value,
        "ending": "env_error" if value is None else "success",
        "success": None if value is None else value > 0,
    }


def frames(files: Mapping[str, pa.Table]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rollouts and episodes as advantage code gets them."""
    return files["rollouts"].to_pandas(), files["episodes"].to_pandas()


def advantage_table(advantages: pd.DataFrame) -> pa.Table:
    """Advantages as advantages.parquet holds them."""
    columns = [
        pa.array(advantages[field.name], field.type, from_pandas=True)
        if field.name in advantages
        else pa.nulls(len(advantages), field.type)
        for field in advantage_schema()
    ]
    return pa.Table.from_arrays(columns, schema=advantage_schema())
