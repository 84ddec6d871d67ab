"""Credit assignment: a name for each estimator, and the one function that stages call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.advantages.event_zscore import event_zscore
from agentbench_rl.algorithms.advantages.gae import gae
from agentbench_rl.algorithms.advantages.gdpo import gdpo
from agentbench_rl.algorithms.advantages.gigpo import gigpo
from agentbench_rl.algorithms.advantages.gpg import gpg
from agentbench_rl.algorithms.advantages.group_mean import group_mean
from agentbench_rl.algorithms.advantages.group_zscore import group_zscore
from agentbench_rl.algorithms.advantages.hgpo import hgpo
from agentbench_rl.algorithms.advantages.leave_one_out import leave_one_out
from agentbench_rl.algorithms.advantages.mt_grpo import mt_grpo
from agentbench_rl.algorithms.advantages.opo import opo
from agentbench_rl.algorithms.advantages.pass_at_k import pass_at_k
from agentbench_rl.algorithms.advantages.reinforcepp import reinforcepp
from agentbench_rl.algorithms.advantages.reinforcepp_baseline import reinforcepp_baseline
from agentbench_rl.algorithms.advantages.remax import remax
from agentbench_rl.algorithms.advantages.sibling import sibling
from agentbench_rl.algorithms.advantages.state_score import state_score
from agentbench_rl.algorithms.advantages.tree_weighted import tree_weighted
from agentbench_rl.algorithms.advantages.tree_zscore import tree_zscore
from agentbench_rl.algorithms.advantages.vine import vine
from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.events import bridge_gaps
from agentbench_rl.algorithms.frames import complete_episodes, complete_rollouts, require_columns
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.algorithms.modifiers import MODIFIERS
from agentbench_rl.algorithms.modifiers.entropies import entropy_scores
from agentbench_rl.algorithms.ragged import blocks, to_lists
from agentbench_rl.algorithms.scores import align_scores, final_values, token_scores
from agentbench_rl.algorithms.selection import set_greedy_apart, trained_rows, varied_groups
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config.advantage import StateScoreAdvantage
from agentbench_rl.config.algorithm import AlgorithmConfig, RewardConfig
from agentbench_rl.types import INFRASTRUCTURE_ENDINGS, AgentRLError

#: By `advantage.estimator`; called with the batch and the estimator's own settings.
ESTIMATORS: Mapping[str, Callable[[Batch, Any], Credit]] = {
    "group_zscore": group_zscore,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "reinforcepp": reinforcepp,
    "reinforcepp_baseline": reinforcepp_baseline,
    "gae": gae,
    "gigpo": gigpo,
    "hgpo": hgpo,
    "tree_zscore": tree_zscore,
    "mt_grpo": mt_grpo,
    "opo": opo,
    "gpg": gpg,
    "pass_at_k": pass_at_k,
    "gdpo": gdpo,
    "remax": remax,
    "state_score": state_score,
    "sibling": sibling,
    "tree_weighted": tree_weighted,
    "vine": vine,
    "event_zscore": event_zscore,
}


def compute_advantages(
    rollouts: pd.DataFrame,
    episodes: pd.DataFrame,
    algorithm: AlgorithmConfig,
    scores: pd.DataFrame | None = None,
    iteration: int = 0,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the advantages of all trained responses and diagnostics of the batch.

    Frames follow the file contract; a foreign frame may lack the optional columns. Rows that lie only on episodes
    with an infrastructure ending, or on none, are dropped before anything is computed; so are greedy baselines. An
    estimator that compares the responses at one state keeps all rows: those on no episode yet are its matter.
    Columns: turn_id, event_id, loss_weight, and advantage or token_advantages, in the rollouts' row order.
    Raises AgentRLError when a required column is missing or the rollout graph is broken.
    """
    require_columns(rollouts, algorithm)
    played, all_episodes = bridge_gaps(complete_rollouts(rollouts), complete_episodes(episodes))
    fault = all_episodes["ending"].isin([str(ending) for ending in INFRASTRUCTURE_ENDINGS])
    healthy = all_episodes[~fault].reset_index(drop=True)
    rollouts, episodes, greedy = set_greedy_apart(played, healthy, algorithm.reward.view)
    unfinished = isinstance(algorithm.advantage, StateScoreAdvantage) and len(rollouts) > 0
    batch = _batch(rollouts, episodes, greedy, algorithm.reward, iteration, whole=unfinished)
    diagnostics = {
        "episodes": float(len(episodes)),
        "dropped_episodes": float(fault.sum()),
        "dropped_rows": float(len(rollouts) - len(batch.rollouts)),
    }
    if not len(episodes) and not unfinished:
        empty = batch.rollouts[["turn_id", "event_id"]]
        return empty.assign(loss_weight=0.0, advantage=0.0).reset_index(drop=True), diagnostics
    diagnostics |= _group_diagnostics(batch) if len(episodes) else {}
    sampled = len(batch.rollouts)
    if algorithm.selection.keep_groups < 1.0:
        batch = _of_groups(batch, varied_groups(batch.returns, batch.episode_groups, algorithm.selection.keep_groups))
    if scores is not None:
        aligned = align_scores(played["turn_id"], batch.rollouts.index.to_numpy(), scores)
        batch = replace(batch, scores=token_scores(batch.rollouts, aligned), final_values=final_values(aligned))
    credit = ESTIMATORS[algorithm.advantage.estimator](batch, algorithm.advantage)
    for modifier in algorithm.modifiers:
        credit = MODIFIERS[modifier.kind](batch, credit, modifier)
    frame = _frame(batch, credit)
    if algorithm.needs_entropy_scores:
        frame["entropy_scores"] = to_lists(entropy_scores(batch), batch.lengths)
    kept = trained_rows(batch.rollouts, algorithm.selection)
    frame = (frame if kept.all() else frame[kept]).reset_index(drop=True)
    diagnostics["unselected_rows"] = float(sampled - len(frame))
    return frame, diagnostics | credit.diagnostics | _advantage_diagnostics(batch, credit)


def _batch(
    rollouts: pd.DataFrame,
    episodes: pd.DataFrame,
    greedy: Mapping[object, float],
    reward: RewardConfig,
    iteration: int,
    *,
    whole: bool = False,
) -> Batch:
    """The batch of the rows that lie on one of the episodes, or of all rows (`whole`).

    Raises AgentRLError for an episode of several groups.
    """
    rows = trajectory_rows(rollouts, episodes)
    on_path = np.flatnonzero(np.bincount(rows.row, minlength=len(rollouts)))
    if len(on_path) < len(rollouts) and not whole:
        rollouts = rollouts.iloc[on_path]
        rows = trajectory_rows(rollouts, episodes)
    batch = Batch(rollouts, episodes, rows, reward, iteration=iteration, greedy=greedy)
    astray = np.flatnonzero(batch.episode_groups[rows.episode] != batch.group)
    if len(astray):
        name = episodes["episode_id"].iloc[int(rows.episode[astray[0]])]
        raise AgentRLError(
            f"rollouts: the rows of one episode, {name!r}, lie in different groups; group_id is per task and start"
        )
    return batch


def _of_groups(batch: Batch, kept: np.ndarray) -> Batch:
    """The batch of the groups [G] that are kept."""
    episodes = batch.episodes[kept[batch.episode_groups]].reset_index(drop=True)
    return _batch(batch.rollouts, episodes, batch.greedy, batch.reward, batch.iteration)


def _frame(batch: Batch, credit: Credit) -> pd.DataFrame:
    """One row per response, in the rollouts' order.

    A response shared by n episodes gets their mean advantage and the loss weight n: what training on every episode
    with its prefix repeated would give.
    """
    shared = np.bincount(batch.rows.row, minlength=len(batch.rollouts))
    frame = batch.rollouts[["turn_id", "event_id"]].reset_index(drop=True)
    frame["loss_weight"] = shared.astype(np.float64)
    if credit.advantage is not None:
        frame["advantage"] = batch.per_row(credit.advantage)
    if credit.row_advantage is not None:
        frame["advantage"] = credit.row_advantage
        frame["loss_weight"] = 1.0 if credit.row_weight is None else credit.row_weight
    if credit.token_advantages is not None:
        frame["token_advantages"] = to_lists(credit.token_advantages, batch.lengths)
    if credit.value_targets is not None:
        frame["value_targets"] = to_lists(credit.value_targets, batch.lengths)
    if credit.turn_value_targets is not None:
        filled = np.minimum(batch.lengths, 1)
        frame["value_targets"] = to_lists(credit.turn_value_targets[filled == 1], filled)
    return frame


def _advantage_diagnostics(batch: Batch, credit: Credit) -> dict[str, float]:
    found = (credit.advantage, credit.row_advantage, credit.token_advantages)
    values = next(array for array in found if array is not None)
    size = max(len(values), 1)
    mean = sum(float(values[block].sum(dtype=np.float64)) for block in blocks(len(values))) / size
    squares = sum(float(np.square(values[block].astype(np.float64) - mean).sum()) for block in blocks(len(values)))
    return {
        "advantage_mean": mean,
        "advantage_std": float(np.sqrt(squares / size)),
        "share_zero_advantage": 1.0 - np.count_nonzero(values) / size,
    }


def _group_diagnostics(batch: Batch) -> dict[str, float]:
    """Unscaled returns, and how many groups carry no signal: groups of one, and groups whose returns are equal."""
    rows, returns = batch.rows, batch.returns
    _, groups = np.unique(batch.group, return_inverse=True)  # of the rows on an episode, which may be few
    statistics = group_statistics(returns[rows.episode], groups, rows.first)
    several = statistics.count > 1
    return {
        "groups": float(len(several)),
        "singleton_groups": float((~several).sum()),
        "frac_zero_std": float((statistics.std[several] == 0.0).mean()) if several.any() else 0.0,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
    }
