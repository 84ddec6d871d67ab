"""Reading rollouts as a person: lists of episodes and transcripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from agentbench_rl.stages.files import read_frame
from agentbench_rl.types import AgentRLError, episode_schema, rollout_schema


def list_episodes(directory: Path) -> list[list[str]]:
    """Rows of (number, episode id, ending, return, turns)."""
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    return [
        [str(number), row["episode_id"], row["ending"], f"{row['return']:g}", str(row["length"])]
        for number, row in enumerate(episodes.to_dict("records"))
    ]


def episode_lines(directory: Path, episode: str) -> Iterator[str]:
    """The turns of one episode, by id or number, as lines of text; raises AgentRLError for an unknown one."""
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    turns = read_frame(directory / "rollouts.parquet", rollout_schema())
    known = episodes["episode_id"] == episode
    if episode.isdigit() and int(episode) < len(episodes):
        known = pd.Series(range(len(episodes))) == int(episode)
    if not known.any():
        raise AgentRLError(f"{directory} holds no episode {episode!r}; list them with `agentrl show {directory}`")
    chosen = episodes.loc[known].iloc[0]
    yield f"{chosen['episode_id']} ({chosen['task_type']}): {chosen['ending']}, return {chosen['return']:g}"
    for turn in turns.loc[turns["tree_id"] == chosen["tree_id"]].sort_values("step").to_dict("records"):
        valid = "" if turn["valid"] else "   (malformed)"
        yield f"\n[{turn['step']}] > {turn['action']}{valid}"
        yield f"    {turn['observation']}"
