"""Reading rollouts as a person: lists of episodes and transcripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
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
    rows = episode_turns(turns, str(chosen["tree_id"]))
    yield f"\n{first_prompt(rows, policy_of(directory))}"
    for turn in rows.to_dict("records"):
        valid = "" if turn["valid"] else "   (malformed)"
        yield f"\n[{turn['step']}] > {turn['action']}{valid}"
        yield f"    {turn['observation']}"


def episode_turns(turns: pd.DataFrame, tree_id: str) -> pd.DataFrame:
    """The rows of one chain in the order of steps."""
    return turns.loc[turns["tree_id"] == tree_id].sort_values("step")


def first_prompt(rows: pd.DataFrame, policy: Path | None) -> str:
    """Text of an episode's first prompt, or its number of tokens where no policy tells how to read them."""
    ids = [] if rows.empty else list(rows.iloc[0]["prompt_ids"])
    return f"({len(ids)} prompt tokens)" if policy is None else ChatCodec(load_tokenizer(policy)).decode(ids)


def policy_of(directory: Path) -> Path | None:
    """The start policy of the results that `directory` lies in: all policies of a comparison share its tokenizer."""
    roots = (parent for parent in directory.resolve().parents if (parent / "experiment.json").exists())
    policy = next(roots, directory) / "sft" / "policy"
    return policy if policy.is_dir() else None
