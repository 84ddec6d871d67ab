"""Which of the sampled rows are trained on; nothing here depends on the order of the rows or on the names of ids.

Groups with little signal (StarPO-S, arXiv 2504.20073, section 3.3) are dropped whole. Rows that are invalid, overlong
or repetitive (Dr.BoT in SPEAR, arXiv 2509.22601) are not trained on, but their episodes still count in every statistic.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.algorithms.ragged import list_lengths
from agentbench_rl.algorithms.rewards import episode_returns
from agentbench_rl.algorithms.trajectories import trajectory_rows
from agentbench_rl.config.algorithm import RewardView, SelectionConfig
from agentbench_rl.types import GREEDY

_GRAM = 4


def varied_groups(returns: np.ndarray, groups: np.ndarray, share: float) -> np.ndarray:
    """The `share` of groups whose returns have the largest sample std, at least one: bool [G].

    Groups that tie with the last one kept are kept too. Returns [E] and group codes [E] are those of episodes.
    """
    std = group_statistics(returns, groups, np.ones(len(returns), dtype=bool)).std
    # Stds that are equal by arithmetic may differ in their last bits.
    std = np.round(std / max(std.max(initial=0.0), np.finfo(np.float64).tiny), 12)
    kept = max(1, int(share * len(std) + 1e-9))
    return np.asarray(std >= np.sort(std)[-kept]) if len(std) else std.astype(bool)


def trained_rows(rollouts: pd.DataFrame, settings: SelectionConfig) -> np.ndarray:
    """Which rows [rows] of completed rollouts are trained on."""
    kept = np.ones(len(rollouts), dtype=bool)
    if settings.drop_invalid:
        kept &= rollouts["valid"].to_numpy(dtype=bool)
    if settings.drop_overlong is not None:
        kept &= rollouts["response_tokens"].to_numpy() < settings.drop_overlong
    if settings.drop_repetitive is not None:
        kept &= repeated_share(rollouts["response_ids"]) <= settings.drop_repetitive
    return kept


def repeated_share(responses: pd.Series) -> np.ndarray:
    """Share of each response's token 4-grams that occurred in it before [rows]; 0 for fewer than 4 tokens or null."""
    lengths = list_lengths(responses)
    row = np.repeat(np.arange(len(lengths)), lengths)
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *responses.dropna()])
    end = len(tokens) - _GRAM + 1
    if end < 1:
        return np.zeros(len(lengths))
    inside = row[:end] == row[_GRAM - 1 :]
    columns = [row[:end], *(tokens[shift : end + shift] for shift in range(_GRAM))]
    grams = codes(*(pd.Series(column[inside]) for column in columns))
    _, earliest = np.unique(grams, return_index=True)
    found = np.bincount(row[:end][inside], minlength=len(lengths))
    distinct = np.bincount(row[:end][inside][earliest], minlength=len(lengths))
    return np.asarray((found - distinct) / np.maximum(found, 1))


def set_greedy_apart(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, view: RewardView
) -> tuple[pd.DataFrame, pd.DataFrame, dict[object, float]]:
    """Completed rollouts and episodes without greedy baselines, and the return of these by group_id, unscaled.

    Episodes are those without a fault; rows on none of them may be there.
    """
    greedy = rollouts[GREEDY].fillna(False).to_numpy(dtype=bool) if GREEDY in rollouts else np.zeros(1, dtype=bool)
    if not greedy.any():
        return rollouts, episodes, {}
    baselines = rollouts[greedy].reset_index(drop=True)
    is_baseline = episodes["leaf_turn_id"].isin(baselines["turn_id"])
    played = episodes[is_baseline].reset_index(drop=True)
    rows = trajectory_rows(baselines, played)
    returns = episode_returns(baselines, played, rows, view)
    groups = baselines["group_id"].iloc[rows.row[rows.first]]
    means = pd.Series(returns[rows.episode[rows.first]]).groupby(groups.to_numpy()).mean()
    by_group: dict[object, float] = {name: float(mean) for name, mean in means.items()}
    return rollouts[~greedy], episodes[~is_baseline].reset_index(drop=True), by_group
