"""What an answer costs on the test panel: sampled tokens, calls of policies and of tools, and correct answers for them.

Of a task x, means over its episodes: C_tok sampled tokens of all members, C_call responses, C_tool tool calls, Avg@k
success. U_tok = 1e6 * sum_x Avg@k(x) / sum_x C_tok(x). Source: SRPO (arXiv 2609.08452, equations 8 and 9).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from agentbench_rl.evaluation.tables import MethodResult, episode_metrics, in_order
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS

UTILITY_COLUMNS = ["method", "seed", "tasks", "success", "sampled_tokens", "calls", "tool_calls", "set_size", "utility"]
_COSTS = ["sampled_tokens", "calls", "tool_calls"]


def with_counts(episodes: pd.DataFrame, rollouts: pd.DataFrame) -> pd.DataFrame:
    """The episodes of chains with the numbers of their responses, `calls`, of `invalid_turns` and of `tool_calls`."""
    counts = ["calls", "invalid_turns", "tool_calls"]
    told = rollouts.assign(calls=1, invalid_turns=~rollouts["valid"]).groupby("tree_id")[counts].sum()
    return episodes.join(told, on="tree_id").fillna(dict.fromkeys(counts, 0)).astype(dict.fromkeys(counts, int))


def utility_table(results: Sequence[MethodResult]) -> pd.DataFrame:
    """One row per run, the start policy first; columns UTILITY_COLUMNS, means over tasks of means over episodes.

    set_size: responses per transition, K; 1 for single agents. utility: correct answers per million sampled tokens.
    Episodes with an infrastructure fault are left out of success and costs alike; a run without another has no numbers.
    """
    rows = []
    for run in in_order(results):
        scored = run.episodes[~run.episodes["ending"].isin(list(INFRASTRUCTURE_ENDINGS))]
        success = episode_metrics(run.episodes)["success"].loc[scored.index]
        by_task = scored[[*_COSTS, "length"]].astype(float).assign(success=success).groupby(scored["task_id"]).mean()
        mean = by_task.mean()
        rows.append(
            {
                "method": run.method,
                "seed": run.seed,
                "tasks": len(by_task),
                **mean[["success", *_COSTS]],
                "set_size": mean["calls"] / (mean["length"] or np.nan),
                "utility": 1e6 * mean["success"] / (mean["sampled_tokens"] or np.nan),
            }
        )
    return pd.DataFrame(rows, columns=UTILITY_COLUMNS).astype({"seed": "Int64"})
