"""A_i = A_E + omega * A_S. A_E: row score within its group. A_S: step return within its anchor group.

Step return: G_t = r_t + gamma * G_{t+1} inside the episode, minus the local invalid-action penalty. Anchor group:
rows of one group with the same anchor (across episodes and within one); a row alone in it has A_S = 0.
`normalisation` `mean_std` divides both levels by std + epsilon, `mean` divides neither.
Source: GiGPO (arXiv 2505.10978, equations 4 to 8).
"""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.advantages.kernels import advantage_frame, counted_rows, group_advantage
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.rewards import invalid_penalties, row_scores, turn_rewards
from agentbench_rl.algorithms.trajectories import TrajectoryRows, discounted_returns, trajectory_rows
from agentbench_rl.config import AlgorithmConfig
from agentbench_rl.types import AgentRLError


def gigpo(
    rollouts: pd.DataFrame, episodes: pd.DataFrame, config: AlgorithmConfig, values: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Episode advantage plus weighted anchor-step advantage. One row per response; critic values are not read.

    Raises AgentRLError without anchor keys and for a null reward. `attrs["diagnostics"]` tells the share of rows
    with a step advantage of 0 and of rows alone in their anchor group.
    """
    rows = trajectory_rows(rollouts, episodes)
    settings = config.advantage
    with_std = settings.normalisation == "mean_std"
    episode_part = group_advantage(
        row_scores(rollouts, episodes, rows, config.reward),
        codes(rollouts["group_id"])[rows.row],
        counted_rows(rows, settings.statistics),
        divide_by_std=with_std,
        singleton=settings.singleton,
        epsilon=settings.epsilon,
    )
    step_return = discounted_returns(rows, turn_rewards(rollouts, rows, config.reward), settings.gamma)
    step_return -= invalid_penalties(rollouts, rows, config.reward)
    anchors = anchor_groups(rollouts, rows, None if settings.anchor == "exact" else settings.similarity)[rows.row]
    step_part = group_advantage(
        step_return,
        anchors,
        np.ones(len(anchors), dtype=bool),
        divide_by_std=with_std,
        singleton="zero",
        epsilon=settings.epsilon,
    )
    frame = advantage_frame(rollouts, rows, episode_part + settings.omega * step_part)
    frame.attrs["diagnostics"] = {
        "share_zero_step_advantage": float(np.mean(step_part == 0.0)),
        "share_singleton_anchors": float(np.mean(np.bincount(anchors)[anchors] == 1)),
    }
    return frame


def anchor_groups(rollouts: pd.DataFrame, rows: TrajectoryRows, threshold: float | None) -> np.ndarray:
    """Anchor group of every row [rows]: equal (group, anchor), or similar text within a group."""
    if "anchor_key" not in rollouts or rollouts["anchor_key"].isna().any():
        raise AgentRLError("rollouts: gigpo needs anchor keys; fill column anchor_key or state_key")
    exact = codes(rollouts["group_id"], rollouts["anchor_key"])
    if threshold is None:
        return exact
    order = np.lexsort([_ranks(rollouts[name]) for name in ("step", "branch", "tree_id", "task_id")])
    groups, texts = rollouts["group_id"].to_numpy(), _anchor_texts(rollouts, rows)
    _, earliest = np.unique(exact[order], return_index=True)
    merged = np.empty(len(earliest), dtype=np.int64)
    clusters: dict[object, list[tuple[SequenceMatcher[str], int]]] = {}
    for row in order[np.sort(earliest)]:
        known = clusters.setdefault(groups[row], [])
        merged[exact[row]] = _cluster(texts[row], known, threshold, int(exact[row]))
    return codes(pd.Series(merged[exact]))


def _ranks(column: pd.Series) -> np.ndarray:
    """Rank of each value among the sorted distinct values [rows]."""
    return np.unique(column.to_numpy(), return_inverse=True)[1]


def _anchor_texts(rollouts: pd.DataFrame, rows: TrajectoryRows) -> np.ndarray:
    """Text a row was sampled in: the observation its parent led to; at a root, or without one, its anchor key."""
    anchors = rollouts["anchor_key"].to_numpy(dtype=object)
    if "observation" not in rollouts:
        return anchors
    led_to = rollouts["observation"].fillna("").to_numpy(dtype=object)[rows.parent_row]
    return np.where((rows.parent_row >= 0) & (led_to != ""), led_to, anchors)


def _cluster(text: str, known: list[tuple[SequenceMatcher[str], int]], threshold: float, label: int) -> int:
    """Label of the first cluster whose representative has ratio >= threshold; a new cluster where none has.

    The ratio is Ratcliff-Obershelp's 2M / (|a| + |b|) on the whole text: difflib's junk heuristic is off.
    """
    for matcher, cluster in known:
        matcher.set_seq1(text)
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
        if all(bound() >= threshold for bound in bounds):
            return cluster
    known.append((SequenceMatcher(None, "", text, autojunk=False), label))
    return label
