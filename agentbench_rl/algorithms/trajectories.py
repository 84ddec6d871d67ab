"""Which rows lie on which episode: a row belongs to every episode whose path from root to leaf holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.frames import codes
from agentbench_rl.types import AgentRLError


@dataclass(frozen=True)
class TrajectoryRows:
    """P pairs (row, episode), ordered by `level`; in files of chains every row has exactly one pair.

    row [P] and episode [P]: positions in the two frames; level [P]: transitions between the row and the leaf;
    lead [P]: the row is member 0 of its event; first [P]: it is also at the root; parent_row [rows]: position of
    the parent, -1 at a root.
    """

    row: np.ndarray
    episode: np.ndarray
    level: np.ndarray
    lead: np.ndarray
    first: np.ndarray
    parent_row: np.ndarray


def trajectory_rows(rollouts: pd.DataFrame, episodes: pd.DataFrame) -> TrajectoryRows:
    """Walk from every leaf to its root, one transition at a time for all episodes at once.

    Both frames are completed ones (`frames`). Raises AgentRLError for an unknown parent or leaf and for a cycle.
    """
    event = codes(rollouts["event_id"])
    order = np.lexsort((rollouts["member"].to_numpy(), event))
    size = np.bincount(event)
    start = np.cumsum(size) - size
    turns = pd.Index(rollouts["turn_id"])
    parent_row = _positions(turns, rollouts["parent_id"], "parent_id")
    leader_parent = parent_row[order[start]]
    parent_event = np.where(leader_parent < 0, -1, event[leader_parent])
    leaf = _positions(turns, episodes["leaf_turn_id"], "leaf_turn_id")
    events, owners, level = _paths(parent_event, event[leaf])
    counts = size[events]
    offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row = order[np.repeat(start[events], counts) + offset]
    lead = offset == 0
    at_root = np.repeat(parent_event[events] < 0, counts)
    episode = np.repeat(owners, counts)
    return TrajectoryRows(row, episode, np.repeat(level, counts), lead, lead & at_root, parent_row)


def discounted_returns(rows: TrajectoryRows, rewards: np.ndarray, gamma: float) -> np.ndarray:
    """G = r + gamma * G of the next transition, along each episode [P]; an event pays its member 0's reward [P]."""
    returns = np.empty(len(rewards))
    carried = np.zeros(int(rows.episode.max(initial=-1)) + 1)
    edges = np.flatnonzero(np.diff(rows.level)) + 1
    for part in np.split(np.arange(len(rewards)), edges):
        leading = part[rows.lead[part]]
        owners = rows.episode[leading]
        carried[owners] = rewards[leading] + gamma * carried[owners]
        returns[part] = carried[rows.episode[part]]
    return returns


def next_values(rows: TrajectoryRows, values: np.ndarray) -> np.ndarray:
    """Value [P] of member 0 of each pair's next transition on its episode [P]; 0 at a leaf."""
    following = np.zeros(len(values))
    ahead = np.zeros(int(rows.episode.max(initial=-1)) + 1)
    edges = np.flatnonzero(np.diff(rows.level)) + 1
    for part in np.split(np.arange(len(values)), edges):
        following[part] = ahead[rows.episode[part]]
        leading = part[rows.lead[part]]
        ahead[rows.episode[leading]] = values[leading]
    return following


def _positions(turns: pd.Index[str], ids: pd.Series, name: str) -> np.ndarray:
    found = turns.get_indexer(pd.Index(ids))
    missing = ids.isna().to_numpy()
    lost = np.flatnonzero((found < 0) & ~missing)
    if len(lost):
        turn = ids.iloc[int(lost[0])]
        raise AgentRLError(f"{name} {turn!r} is no turn_id of the rollouts; the file is incomplete")
    return np.where(missing, -1, found)


def _paths(parent_event: np.ndarray, leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Events, owning episodes and levels of all paths, leaf level first."""
    events, owners = [leaves], [np.arange(len(leaves))]
    while True:
        above = parent_event[events[-1]]
        inside = above >= 0
        if not inside.any():
            break
        if len(events) > len(parent_event):
            raise AgentRLError("rollouts: the parent_id of some turns form a cycle; a path must end at a root")
        events.append(above[inside])
        owners.append(owners[-1][inside])
    level = np.repeat(np.arange(len(events)), [len(part) for part in events])
    return np.concatenate(events), np.concatenate(owners), level
