"""Columns of the file contract that every kind of episode fills in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbench_rl.policies.base import Completion
from agentbench_rl.policies.entropies import boundary_token
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.types import DENSE_LIMIT, INFRASTRUCTURE_ENDINGS, AgentRLError, Ending

Row = dict[str, Any]


def prompt_fits(task_id: str, length: int, limit: int, *, first: bool) -> bool:
    """Whether a prompt of `length` tokens leaves room for a response; raises AgentRLError where a first one does not.

    An episode without a turn would have nothing to train on.
    """
    if length > limit and first:
        raise AgentRLError(
            f"task {task_id}: its first prompt has {length} tokens, and rollout.max_context_tokens "
            f"- rollout.max_response_tokens leaves {limit}; raise rollout.max_context_tokens"
        )
    return length <= limit


def response_columns(completion: Completion, codec: ChatCodec, prefix: str) -> Row:
    """What was sampled; the boundary entropy is that of the first token after the protocol's `prefix`."""
    index = boundary_token(completion.token_ids, prefix, codec.decode)
    return {
        "response_ids": completion.token_ids,
        "response_logprobs": completion.logprobs,
        "boundary_entropy": completion.entropies[index] if completion.entropies else None,
    }


def dense_change(before: float, after: float) -> float:
    """Change of the goal's progress, kept inside (-1, 1)."""
    return max(-DENSE_LIMIT, min(DENSE_LIMIT, after - before))


def cost_of(rows: Sequence[Row], environment_steps: int) -> dict[str, int]:
    """The ledger of these rows."""
    return {
        "environment_steps": environment_steps,
        "sampled_tokens": sum(len(row["response_ids"]) for row in rows),
        "prompt_tokens": sum(len(row["prompt_ids"]) for row in rows),
        "tool_calls": sum(row["tool_calls"] for row in rows),
    }


def summary_of(episode_id: str, columns: Row, ending: Ending, leaf: str, events: Sequence[Sequence[Row]]) -> Row:
    """Return the row of `episodes.parquet`; all rows of an event hold its reward, which counts once.

    leaf: id of the last turn. An infrastructure ending carries no reward.
    """
    faulty = ending in INFRASTRUCTURE_ENDINGS
    rewards = [event[0]["reward"] or 0.0 for event in events]
    cost = cost_of([row for event in events for row in event], len(events))
    return {
        "episode_id": episode_id,
        "leaf_turn_id": leaf,
        **columns,
        "ending": str(ending),
        "length": len(events),
        "sampled_tokens": cost["sampled_tokens"],
        "prompt_tokens": cost["prompt_tokens"],
        "return": None if faulty else float(sum(rewards)),
        "success": None if faulty else ending is Ending.SUCCESS,
        "score": None if faulty else max(rewards, default=0.0),
    }
