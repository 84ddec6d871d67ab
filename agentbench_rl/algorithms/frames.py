"""The documented columns that advantage code reads, with defaults for those a foreign file may leave out.

Absent or null: `event_id` = own turn_id, `event_type` = "act", `event_size` = 1, `member` = 0, `branch` = 0,
`anchor_key` = state_key, `valid` = true, `reward` and `return` = null; `response_tokens` = length of `response_ids`,
else 1; `parent_id`, where the whole column is absent or null, = the turn of the same tree one step before; then every
tree must be a chain. Where `branch_siblings` is absent or null, estimators of trees take the siblings that are there
for all that were planned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.ragged import list_lengths
from agentbench_rl.config.advantage import (
    EventZscore,
    Gae,
    Gdpo,
    Gigpo,
    Hgpo,
    MtGrpo,
    Opo,
    Reinforcepp,
    ReinforceppBaseline,
    Remax,
    StateScoreAdvantage,
)
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AGENT, ALLOCATION, GREEDY, SIBLINGS, STEP_REWARD, TEAM_ROUND, AgentRLError, Ending

_REQUIRED_OF_ROLLOUTS = ("turn_id", "task_id", "group_id", "tree_id", "step")
_REQUIRED_OF_EPISODES = ("episode_id", "leaf_turn_id", "ending")
_MEANING = {
    "process_reward": "dense rewards",
    "tool_calls": "tool calls",
    "response_ids": "response tokens",
    "response_tokens": "response lengths",
    GREEDY: "greedy baselines",
    STEP_REWARD: "step rewards",
    ALLOCATION: "planned responses",
    AGENT: "the names of agents",
    TEAM_ROUND: "rounds of the team",
}


def columns_needed(algorithm: AlgorithmConfig) -> tuple[str, ...]:
    """Optional columns of the rollouts that only some methods read.

    `response_tokens` may be told by the lengths of `response_ids`, `anchor_key` by `state_key`.
    """
    advantage, reward, selection = algorithm.advantage, algorithm.reward, algorithm.selection
    anchored = isinstance(advantage, Gigpo | Hgpo)
    by_event = isinstance(advantage, EventZscore)
    weighted = isinstance(advantage, Gdpo) and advantage.process_weight > 0
    by_length = (
        isinstance(advantage, Opo | Gdpo | Gae | Reinforcepp | ReinforceppBaseline)
        or selection.drop_overlong is not None
        or reward.overlong is not None
        or algorithm.advantage_reads_scores
    )
    needed = {
        "anchor_key": anchored,
        "state_key": anchored or by_event,
        "observation": isinstance(advantage, Gigpo) and advantage.anchor == "similarity",
        "process_reward": reward.view == "process" or isinstance(advantage, MtGrpo) or weighted,
        "tool_calls": reward.tool_call_bonus is not None,
        "response_ids": selection.drop_repetitive is not None,
        "response_tokens": by_length,
        GREEDY: isinstance(advantage, Remax),
        STEP_REWARD: isinstance(advantage, StateScoreAdvantage),
        ALLOCATION: isinstance(advantage, StateScoreAdvantage),
        **dict.fromkeys(("event_type", "event_size", "policy", "policy_version"), by_event),
        AGENT: isinstance(advantage, EventZscore) and advantage.group == "agent",
        TEAM_ROUND: isinstance(advantage, EventZscore) and advantage.group == "event_type_and_round",
    }
    return tuple(name for name, wanted in needed.items() if wanted)


def require_columns(rollouts: pd.DataFrame, algorithm: AlgorithmConfig) -> None:
    """Raise AgentRLError naming the first column that the method needs and that has no default.

    A file without a row lacks its topology's own columns, and needs none.
    """
    if not len(rollouts):
        return
    for name in columns_needed(algorithm):
        told_by = {name} | ({"response_ids"} if name == "response_tokens" else set())
        if name in _MEANING and not told_by & set(rollouts.columns):
            raise AgentRLError(f"rollouts: this method needs {_MEANING[name]}, column {name}; add it to the file")
        shared = "event_id" in rollouts and rollouts["event_id"].dropna().duplicated().any()
        if name == "event_size" and name not in rollouts and shared:
            raise AgentRLError("rollouts: several responses share an event_id; tell its planned size in event_size")


def complete_rollouts(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Return the rollouts with every column that advantage code reads, defaults filled in, in the same row order.

    Raises AgentRLError for a missing required column, a null in one, a repeated turn_id, a lossy numeric cast or a
    response without a known number of tokens.
    """
    _require(rollouts, _REQUIRED_OF_ROLLOUTS, "rollouts")
    require_unique(rollouts["turn_id"], "rollouts", "turn_id")
    frame = rollouts.reset_index(drop=True)
    frame["step"] = _integers(frame["step"], "step")
    for name in ("branch", "member"):
        frame[name] = _integers(frame[name].fillna(0), name) if name in frame else 0
    if SIBLINGS in frame and frame[SIBLINGS].notna().any():
        frame[SIBLINGS] = _integers(frame[SIBLINGS].fillna(0), SIBLINGS)
    else:
        frame = frame.drop(columns=SIBLINGS, errors="ignore")
    for name in {ALLOCATION, TEAM_ROUND} & set(frame):
        _require(frame, (name,), "rollouts")
        frame[name] = _integers(frame[name], name)
    frame["event_id"] = _filled(frame, "event_id", frame["turn_id"])
    frame["event_type"] = frame["event_type"].fillna("act") if "event_type" in frame else "act"
    frame["event_size"] = _integers(frame["event_size"].fillna(1), "event_size") if "event_size" in frame else 1
    frame["valid"] = frame["valid"].fillna(True).astype(bool) if "valid" in frame else True
    frame["reward"] = _floats(frame, "reward")
    if "response_tokens" in frame:
        frame["response_tokens"] = _counts(frame["response_tokens"])
    else:
        frame["response_tokens"] = list_lengths(frame["response_ids"]) if "response_ids" in frame else 1
    if "state_key" in frame:
        frame["anchor_key"] = _filled(frame, "anchor_key", frame["state_key"])
    if "parent_id" not in frame or bool(frame["parent_id"].isna().all()):
        frame["parent_id"] = _chain_parents(frame)
    return frame


def complete_episodes(episodes: pd.DataFrame) -> pd.DataFrame:
    """Return the episodes with `return` (float, NaN where unknown) in the same row order.

    Raises AgentRLError for a missing required column, a null in one, an id or a leaf that stands twice, and for an
    unknown ending.
    """
    _require(episodes, _REQUIRED_OF_EPISODES, "episodes")
    for name in ("episode_id", "leaf_turn_id"):
        require_unique(episodes[name], "episodes", name)
    unknown = sorted(set(episodes["ending"]) - {str(ending) for ending in Ending})
    if unknown:
        raise AgentRLError(f"episodes: unknown ending {unknown[0]!r}; known are {', '.join(Ending)}")
    frame = episodes.reset_index(drop=True)
    frame["return"] = _floats(frame, "return")
    return frame


def codes(*columns: pd.Series) -> np.ndarray:
    """Number the distinct combinations of the columns' values: int64 [rows], in order of first appearance."""
    combined = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        numbers, values = pd.factorize(column)
        combined, _ = pd.factorize(combined * (len(values) + 1) + numbers)
    return combined


def require_unique(column: pd.Series, file: str, name: str) -> None:
    """Raise AgentRLError for an id that stands in more than one row."""
    repeated = column[column.duplicated()]
    if len(repeated):
        raise AgentRLError(f"{file}: {name} {repeated.iloc[0]!r} stands in more than one row; ids must be unique")


def _require(frame: pd.DataFrame, names: Sequence[str], file: str) -> None:
    missing = [name for name in names if name not in frame]
    if missing:
        raise AgentRLError(f"{file}: required column(s) missing: {', '.join(missing)}; add them to the file")
    for name in names:
        if frame[name].isna().any():
            raise AgentRLError(f"{file}: column {name} holds a null; every row needs a value")


def _integers(column: pd.Series, name: str) -> np.ndarray:
    try:
        numbers = column.to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        raise AgentRLError(f"rollouts: column {name} must hold integers, found {column.dtype}") from None
    integers = numbers.astype(np.int64)
    if (integers != numbers).any():
        raise AgentRLError(f"rollouts: column {name} holds a number that is no integer")
    return integers


def _counts(column: pd.Series) -> np.ndarray:
    known = column.notna().to_numpy()
    if not known.all() or (column < 0).any():
        raise AgentRLError("rollouts: column response_tokens holds a null or a negative number; count every response")
    return _integers(column, "response_tokens")


def _floats(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name not in frame:
        return np.full(len(frame), np.nan)
    try:
        return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise AgentRLError(f"column {name} must hold numbers, found {frame[name].dtype}") from None


def _filled(frame: pd.DataFrame, name: str, default: pd.Series) -> pd.Series:
    return frame[name].astype(default.dtype).fillna(default) if name in frame else default


def _chain_parents(frame: pd.DataFrame) -> pd.Series:
    """The turn_id one step before in the same tree (null at a root), for files without parent_id."""
    if not (frame["step"] > 0).any():
        return pd.Series([None] * len(frame), dtype=frame["turn_id"].dtype)
    leads = frame[frame["member"] == 0]
    repeated = leads.duplicated(["tree_id", "step"])
    if (frame["branch"] != 0).any() or repeated.any() or leads.empty != frame.empty:
        raise AgentRLError("rollouts: column parent_id is missing and the trees are no chains; add parent_id")
    position = pd.MultiIndex.from_frame(leads[["tree_id", "step"]])
    before = pd.MultiIndex.from_arrays([frame["tree_id"], frame["step"] - 1])
    found = position.get_indexer(before)
    lost = (found < 0) & (frame["step"].to_numpy() > 0)
    if lost.any():
        turn = frame["turn_id"].to_numpy()[lost][0]
        raise AgentRLError(f"rollouts: column parent_id is missing and turn {turn!r} has no turn one step before")
    parents = leads["turn_id"].iloc[found].reset_index(drop=True)
    return parents.mask(found < 0)
