"""A_i = A_E + omega * A_S. A_E: row score within its group. A_S: step return within its anchor group.

Step return: G_t = r_t + gamma * G_{t+1} inside the episode, plus what the row alone is charged or paid. Anchor group:
rows of one group with the same anchor (across episodes and within one); a row alone in it has A_S = 0.
`normalisation` `mean_std` divides both levels by std + epsilon, `mean` divides neither.
Source: GiGPO (arXiv 2505.10978, equations 4 to 8).
"""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.algorithms.trajectories import TrajectoryRows, discounted_returns
from agentbench_rl.config.advantage import Gigpo
from agentbench_rl.types import AgentRLError


def gigpo(batch: Batch, settings: Gigpo) -> Credit:
    """Episode advantage plus weighted anchor-step advantage [P].

    Raises AgentRLError without anchor keys and for a null reward. Diagnostics: the share of rows with a step
    advantage of 0 and of rows alone in their anchor group.
    """
    epsilon = settings.epsilon if settings.normalisation == "mean_std" else None
    counted = batch.counted(settings.statistics)
    episode_part = group_advantage(
        batch.row_scores, batch.group, counted, singleton=settings.singleton, epsilon=epsilon
    )
    threshold = None if settings.anchor == "exact" else settings.similarity
    anchors = anchor_groups(batch.rollouts, batch.rows, threshold)[batch.rows.row]
    everyone = np.ones(len(anchors), dtype=bool)
    returns = step_returns(batch, settings.gamma)
    step_part = group_advantage(returns, anchors, everyone, singleton="zero", epsilon=epsilon)
    diagnostics = {
        "share_zero_step_advantage": float(np.mean(step_part == 0.0)),
        "share_singleton_anchors": float(np.mean(np.bincount(anchors)[anchors] == 1)),
    }
    return Credit(episode_part + settings.omega * step_part, diagnostics=diagnostics)


def step_returns(batch: Batch, gamma: float) -> np.ndarray:
    """Discounted return from every transition on, plus what the row alone is charged or paid [P]."""
    returns = discounted_returns(batch.rows, batch.turn_rewards, gamma)
    return np.asarray(returns + batch.local_scores)


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
