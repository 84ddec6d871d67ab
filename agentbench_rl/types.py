"""Public types and the Arrow schemas of the file contract (rollouts, episodes, scores, advantages).

Everything here is frozen and versioned: `SCHEMA_VERSION` stands in the metadata of every Parquet file,
and a reader refuses a newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
#: Name in `policy` of the copy of the policy that `reward_swap` collects episodes with; its versions are its updates.
EXPLORER = "explorer"
#: Name of a policy that has none beside it.
SINGLE = "policy"
#: Own column of the `chains` topology in rollouts.parquet: whether a row belongs to the greedy episode of its group, a
#: baseline that is not trained on. Absent in files of methods without such episodes.
GREEDY = "chains_greedy"
#: Own column of trees: how many siblings were planned at the state before a response, its own event included; 0 where
#: nothing was forked. Fewer events than planned: one of them died of a fault.
SIBLINGS = "branch_siblings"
#: Own columns of `expand`: the round a row was sampled in, its state's score S, how many responses were sampled at the
#: state, the step reward before penalties (null after a fault), and whether the next state was new.
ROUND, STATE_SCORE, ALLOCATION = "expand_round", "expand_score", "expand_allocation"
STEP_REWARD, NOVEL = "expand_reward", "expand_novel"
#: Own columns of `team`: who of the team said a response, and in which round of its workflow.
AGENT, TEAM_ROUND = "team_agent", "team_round"
#: Dense rewards lie in the open interval (-1, 1); what would lie beyond is kept at this distance from 0.
DENSE_LIMIT = 0.999

#: Told (done, total) while long work goes on.
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """A progress callback that says nothing."""


class AgentRLError(Exception):
    """A mistake or a condition the user can act on; the CLI prints its message without a traceback."""


class Ending(StrEnum):
    """How an episode ended; exactly one per episode."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    PARSE_ERROR = "parse_error"
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"


#: Endings that carry no reward, enter no statistic of a method, are retried and counted.
INFRASTRUCTURE_ENDINGS = frozenset({Ending.ENV_ERROR, Ending.TIMEOUT, Ending.GRADER_ERROR})

#: Endings of episodes that were cut at a limit: the state they stopped in is not a terminal one.
TRUNCATED_ENDINGS = frozenset({Ending.TRUNCATED_TURNS, Ending.TRUNCATED_TOKENS})


class InfrastructureError(Exception):
    """A fault of the machinery (not of the agent): the same actions could end differently when executed again.

    `ending`: how an episode ends in which it happens.
    """

    def __init__(self, message: str, ending: Ending = Ending.ENV_ERROR) -> None:
        super().__init__(message)
        self.ending = ending


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a split; `content_hash` is the SHA-256 of what defines it, so that equal ids mean equal tasks."""

    task_id: str
    task_type: str
    split: str
    content_hash: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees after `reset`."""

    text: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a transition led to; `reward` is in [0, 1], `process_reward` (goal progress) too, or None.

    valid: the action followed the environment's grammar (whether or not it was of use).
    """

    observation: str
    reward: float
    done: bool
    success: bool
    process_reward: float | None = None
    tool_calls: int = 0
    valid: bool = True


@cache
def rollout_schema() -> pa.Schema:
    """Schema of `rollouts.parquet`: one row per sampled response (turn)."""
    import pyarrow as pa

    required = [
        ("turn_id", pa.string()),
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("group_id", pa.string()),
        ("tree_id", pa.string()),
        ("branch", pa.int32()),
        ("step", pa.int32()),
        ("event_id", pa.string()),
        ("event_type", pa.string()),
        ("event_size", pa.int16()),
        ("member", pa.int16()),
        ("policy", pa.string()),
        ("policy_version", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("extends_parent", pa.bool_()),
        ("response_ids", pa.list_(pa.int32())),
        ("response_logprobs", pa.list_(pa.float32())),
        ("state_key", pa.string()),
        ("next_state_key", pa.string()),
        ("anchor_key", pa.string()),
        ("action", pa.string()),
        ("observation", pa.string()),
        ("tool_calls", pa.int16()),
        ("valid", pa.bool_()),
        ("done", pa.bool_()),
    ]
    nullable = [
        ("parent_id", pa.string()),
        ("boundary_entropy", pa.float32()),
        ("reward", pa.float32()),
        ("process_reward", pa.float32()),
        ("ending", pa.string()),
    ]
    return _versioned(required, nullable)


@cache
def topology_columns() -> dict[str, pa.DataType]:
    """The topologies' own columns of `rollouts.parquet`, named after them; a file holds those of its topology."""
    import pyarrow as pa

    expand = {ROUND: pa.int32(), STATE_SCORE: pa.float64(), ALLOCATION: pa.int32()}
    expand |= {STEP_REWARD: pa.float64(), NOVEL: pa.bool_()}
    team = {AGENT: pa.string(), TEAM_ROUND: pa.int32()}
    return {GREEDY: pa.bool_(), SIBLINGS: pa.int32(), **expand, **team}


@cache
def episode_schema() -> pa.Schema:
    """Schema of `episodes.parquet`: one row per finished episode (a leaf of the rollout graph)."""
    import pyarrow as pa

    required = [
        ("episode_id", pa.string()),
        ("leaf_turn_id", pa.string()),
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("group_id", pa.string()),
        ("tree_id", pa.string()),
        ("ending", pa.string()),
        ("length", pa.int32()),
        ("sampled_tokens", pa.int64()),
        ("prompt_tokens", pa.int64()),
    ]
    nullable = [("return", pa.float32()), ("success", pa.bool_()), ("score", pa.float32())]
    return _versioned(required, nullable)


@cache
def score_schema() -> pa.Schema:
    """Schema of `scores.parquet`: of every response token its log-prob under the trainer's and the start policy.

    values: the critic's for the state before each token; entropies (nats) of the trainer's next-token distributions.
    final_value: the critic's for the state that a cut episode stopped in.
    """
    import pyarrow as pa

    lists = ("old_logprobs", "reference_logprobs", "values", "entropies")
    nullable = [(name, pa.list_(pa.float32())) for name in lists]
    return _versioned([("turn_id", pa.string())], [*nullable, ("final_value", pa.float32())])


@cache
def advantage_schema() -> pa.Schema:
    """Schema of `advantages.parquet`: one row per trained response.

    value_targets: per token, or one for the state before the response. entropy_scores: z-score of each token's
    entropy. source: null for responses of this iteration, `replay` for earlier ones, which stand in
    `replayed.parquet`; source_weight: weight of that source's loss, null: 1; old_logprobs: of replayed responses.
    behaviour_logprobs: of replayed responses whose ratio is to the policy that sampled them (RSPO); without a
    source_weight they form one loss with this iteration's responses.
    """
    import pyarrow as pa

    required = [("turn_id", pa.string()), ("event_id", pa.string()), ("loss_weight", pa.float32())]
    lists = ("token_advantages", "value_targets", "entropy_scores", "old_logprobs", "behaviour_logprobs")
    nullable = [("advantage", pa.float32()), *((name, pa.list_(pa.float32())) for name in lists)]
    return _versioned(required, [*nullable, ("source", pa.string()), ("source_weight", pa.float32())])


def _versioned(required: list[tuple[str, pa.DataType]], nullable: list[tuple[str, pa.DataType]]) -> pa.Schema:
    import pyarrow as pa

    fields = [pa.field(name, kind, nullable=False) for name, kind in required]
    fields += [pa.field(name, kind, nullable=True) for name, kind in nullable]
    return pa.schema(fields, metadata={"agentbench_rl.schema": str(SCHEMA_VERSION)})
