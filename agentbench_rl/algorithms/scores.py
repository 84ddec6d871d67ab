"""Rows of `scores.parquet` brought into the order of the rollouts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.frames import require_unique
from agentbench_rl.algorithms.ragged import flatten
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError

_TOKEN_COLUMNS = ("old_logprobs", "reference_logprobs", "values", "entropies")


def score_columns_read(algorithm: AlgorithmConfig) -> tuple[str, ...]:
    """Columns of `scores.parquet` that a method's advantages are made of."""
    in_reward = algorithm.reward.kl_coefficient > 0
    read = {
        "old_logprobs": in_reward,
        "reference_logprobs": in_reward,
        "values": algorithm.critic is not None,
        "final_value": "final_value" in algorithm.score_columns,
        "entropies": algorithm.needs_entropies,
    }
    return tuple(name for name, wanted in read.items() if wanted)


def align_scores(turns: pd.Series, trained: np.ndarray, scores: pd.DataFrame) -> pd.DataFrame:
    """The scores of the turns at the positions `trained`, in that order; `turns` are the ids of all rollouts.

    Raises AgentRLError for a trained turn without scores, for scores of an unknown turn and for a repeated turn_id.
    """
    if "turn_id" not in scores:
        raise AgentRLError("scores: required column(s) missing: turn_id; add it to the file")
    if len(trained) == len(turns) and scores["turn_id"].equals(turns):
        return scores
    require_unique(scores["turn_id"], "scores", "turn_id")
    known = pd.Index(turns)
    unknown = known.get_indexer(pd.Index(scores["turn_id"])) < 0
    if unknown.any():
        turn = scores["turn_id"].iloc[int(np.argmax(unknown))]
        raise AgentRLError(f"scores: turn {turn!r} is not in the rollouts; both must come from the same rollout")
    place = pd.Index(scores["turn_id"]).get_indexer(known[trained])
    if (place < 0).any():
        turn = turns.iloc[int(trained[np.argmax(place < 0)])]
        raise AgentRLError(f"scores: turn {turn!r} is missing; run the score stage on these rollouts again")
    aligned: pd.DataFrame = scores.iloc[place].reset_index(drop=True)
    return aligned


def token_scores(rollouts: pd.DataFrame, scores: pd.DataFrame) -> dict[str, np.ndarray]:
    """Flat token arrays [S] of the columns that are there; `scores` are aligned with the rollouts.

    Raises AgentRLError for a list of another length than its response and for a value that is not finite.
    """
    lengths = rollouts["response_tokens"].to_numpy(dtype=np.int64)
    return {
        name: flatten(scores[name], lengths, rollouts["turn_id"], f"scores: {name}")
        for name in _TOKEN_COLUMNS
        if name in scores and not scores[name].isna().all()
    }


def final_values(scores: pd.DataFrame) -> np.ndarray | None:
    """The critic's value of the state after each turn [rows], NaN where it has none; None without the column."""
    if "final_value" not in scores:
        return None
    return scores["final_value"].to_numpy(dtype=np.float64, na_value=np.nan)
