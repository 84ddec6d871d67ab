"""Events of a team: the set of responses that one transition consumes together, and whether all of its members exist.

An event is complete when it has as many rows as `event_size`, its members are 0 .. K - 1, and they agree on event_size,
event_type, state_key and their place (tree, branch, step, parent). A missing member never makes a smaller set: its
event is no event. Source: SRPO (arXiv 2609.08452, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.frames import codes
from agentbench_rl.types import AgentRLError

#: What the members of an event agree on, where the file has it.
_SHARED = ("event_type", "event_size", "state_key", "tree_id", "branch", "step", "parent_id")


@dataclass(frozen=True)
class Events:
    """The E events of completed rollouts, in order of first appearance.

    event [rows]: the one that consumes each row. lead [E]: row of its first member. size [E]: planned members K.
    complete [E].
    """

    event: np.ndarray
    lead: np.ndarray
    size: np.ndarray
    complete: np.ndarray


def events_of(rollouts: pd.DataFrame) -> Events:
    """Find the events of completed rollouts; raises AgentRLError for one that two versions of a policy acted in."""
    event = codes(rollouts["event_id"])
    _require_one_version(rollouts, event)
    member = rollouts["member"].to_numpy()
    order = np.lexsort((member, event))
    count = np.bincount(event)
    start = np.cumsum(count) - count
    place = np.arange(len(order)) - np.repeat(start, count)
    numbered = np.bincount(event[order], member[order] != place, len(count)) == 0
    kinds = codes(rollouts["event_id"], *(rollouts[name] for name in _SHARED if name in rollouts))
    alike = np.bincount(event[np.unique(kinds, return_index=True)[1]], minlength=len(count)) == 1
    lead = order[start]
    size = rollouts["event_size"].to_numpy()[lead]
    return Events(event, lead, size, numbered & alike & (count == size))


def bridge_gaps(rollouts: pd.DataFrame, episodes: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Let what names a missing member 0 name a member of its event that is there, so that episodes stay whole.

    A parent is the event one step before in the same tree and branch, a leaf the last event of the episode's tree. All
    members hold the reward of their transition. Other unknown turns stay what they are, errors.
    """
    if (rollouts["member"] == 0).all():
        return rollouts, episodes
    first = rollouts.sort_values("member", kind="stable").drop_duplicates("event_id")
    headless = first[first["member"] != 0]
    if headless.empty:
        return rollouts, episodes
    placed = headless.drop_duplicates(["tree_id", "branch", "step"], keep=False)
    at = dict(
        zip(zip(placed["tree_id"], placed["branch"], placed["step"], strict=True), placed["turn_id"], strict=True)
    )
    known = set(rollouts["turn_id"])
    before = zip(rollouts["tree_id"], rollouts["branch"], rollouts["step"] - 1, strict=True)
    parents = [
        turn if turn in known or pd.isna(turn) else at.get(place, turn)
        for turn, place in zip(rollouts["parent_id"], before, strict=True)
    ]
    rollouts = rollouts.assign(parent_id=pd.Series(parents, rollouts.index, rollouts["parent_id"].dtype))
    if "tree_id" in episodes:
        ends = placed[placed["step"] == placed["tree_id"].map(rollouts.groupby("tree_id")["step"].max())]
        ends = ends.drop_duplicates("tree_id", keep=False)
        stand_in = episodes["tree_id"].map(dict(zip(ends["tree_id"], ends["turn_id"], strict=True)))
        lost = ~episodes["leaf_turn_id"].isin(known) & stand_in.notna()
        episodes = episodes.assign(leaf_turn_id=episodes["leaf_turn_id"].mask(lost, stand_in))
    return rollouts, episodes


def _require_one_version(rollouts: pd.DataFrame, event: np.ndarray) -> None:
    if "policy_version" not in rollouts:
        return
    policy = [rollouts["policy"]] if "policy" in rollouts else []
    actor = codes(rollouts["event_id"], *policy)
    version = codes(rollouts["event_id"], *policy, rollouts["policy_version"])
    rows = np.unique(version, return_index=True)[1]
    several = rows[np.bincount(actor[rows])[actor[rows]] > 1]
    if len(several):
        row = rollouts.iloc[int(several[0])]
        raise AgentRLError(
            f"rollouts: two versions of one policy acted in event {row['event_id']!r}; the members of an event are "
            "sampled by one version of every policy: do not change weights before a transition is over"
        )
