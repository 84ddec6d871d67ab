"""How many states a method saw, at which cost, how many of its groups taught something, and the shape of its trees.

Numbers of a run, iteration by iteration, and one row per run. A topology's own metrics are columns for all methods, and
empty for those that do not have them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

#: Metrics of the rollout stage that every method has; the others are of its topology.
_OF_ALL = ("success", "return", "episode_length", "valid_turns", "boundary_entropy")
_COUNTED = ("distinct_states", "informative_groups")
EXPLORATION_COLUMNS = (
    *("method", "seed", "distinct_states", "states_per_response", "informative_groups"),
    *("responses", "sampled_tokens", "optimizer_steps", "responses_per_step", "tokens_per_step"),
    *("gradient_norm", "gradient_norm_variance"),
)


@dataclass(frozen=True)
class Explored:
    """One iteration of a run.

    states: keys of the states before and after its responses. rollout, advantage: metrics of these stages. ledger: sum
    over the stages. gradient_norms: before the clip, of every optimizer step.
    """

    states: Collection[str]
    rollout: Mapping[str, float]
    advantage: Mapping[str, float]
    ledger: Mapping[str, float]
    gradient_norms: Sequence[float]


def exploration_curves(runs: Mapping[tuple[str, int], Sequence[Explored]]) -> pd.DataFrame:
    """One row per method, seed and iteration (from 1); counts, costs and gradient norms are of all until then."""
    rows: list[dict[str, object]] = []
    for (method, seed), iterations in runs.items():
        seen: set[str] = set()
        norms: list[float] = []
        responses = tokens = steps = 0.0
        for number, explored in enumerate(iterations, start=1):
            seen |= set(explored.states)
            responses += explored.ledger["model_calls"]
            tokens += explored.ledger["sampled_tokens"]
            steps += explored.ledger["optimizer_steps"]
            norms += explored.gradient_norms
            row = {"method": method, "seed": seed, "iteration": number, "distinct_states": len(seen)}
            costs = {"responses": round(responses), "sampled_tokens": round(tokens), "optimizer_steps": round(steps)}
            own = {key: value for key, value in explored.rollout.items() if key not in (*_OF_ALL, *_COUNTED)}
            told = {"informative_groups": informative_share(explored)} | _spread(norms)
            rows.append(row | costs | told | own)
    frame = pd.DataFrame(rows)
    counted = ["method", "seed", "iteration", "distinct_states", "responses", "sampled_tokens", "optimizer_steps"]
    counted += ["informative_groups", "gradient_norm", "gradient_norm_variance"]
    return frame[[*counted, *sorted(frame.columns.difference(counted), key=_natural)]]


def exploration_table(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run: EXPLORATION_COLUMNS, and the means over iterations of the topologies' own metrics.

    curves: `exploration_curves`. distinct_states: of the whole run. informative_groups: mean over iterations.
    """
    rows = []
    own = [key for key in curves.columns if key not in (*EXPLORATION_COLUMNS, "iteration")]
    for (method, seed), run in curves.groupby(["method", "seed"], sort=False):
        last = run.iloc[-1]
        steps = float(last["optimizer_steps"]) or np.nan
        row = {"method": method, "seed": seed, "informative_groups": run["informative_groups"].mean()}
        row |= {key: last[key] for key in ("distinct_states", "responses", "sampled_tokens", "optimizer_steps")}
        row |= {key: last[key] for key in ("gradient_norm", "gradient_norm_variance")}
        row["states_per_response"] = last["distinct_states"] / last["responses"]
        row["responses_per_step"] = last["responses"] / steps
        row["tokens_per_step"] = last["sampled_tokens"] / steps
        rows.append(row | {key: run[key].mean() for key in own})
    return pd.DataFrame(rows, columns=[*EXPLORATION_COLUMNS, *own])


def informative_share(explored: Explored) -> float:
    """Share of the groups an iteration played whose members could be told apart.

    What the topology or the estimator counts as a group; else the episodes of a task, by their returns.
    """
    for metrics in (explored.rollout, explored.advantage):
        if "informative_groups" in metrics:
            return metrics["informative_groups"]
    groups = explored.advantage.get("groups", 0.0)
    if not groups:
        return 0.0
    several = groups - explored.advantage["singleton_groups"]
    return several * (1.0 - explored.advantage["frac_zero_std"]) / groups


def _spread(norms: Sequence[float]) -> dict[str, float]:
    """Mean of the gradient norms, and their variance over n - 1; not known without steps."""
    variance = float(np.var(norms, ddof=1)) if len(norms) > 1 else np.nan
    return {"gradient_norm": float(np.mean(norms)) if norms else np.nan, "gradient_norm_variance": variance}


def _natural(name: str) -> tuple[str, int]:
    """allocation_2 before allocation_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name.removeprefix(stem) or 0)
