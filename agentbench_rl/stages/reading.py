"""Reading rollouts as a person: lists of episodes and trees, transcripts, and trees to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from agentbench_rl.evaluation.conversation import Event, events_to_read
from agentbench_rl.evaluation.trees import Tree, forked_trees, path_of, tree_of
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.stages.columns import read_columns
from agentbench_rl.stages.files import read_frame
from agentbench_rl.types import (
    AGENT,
    ALLOCATION,
    STATE_SCORE,
    STEP_REWARD,
    AgentRLError,
    advantage_schema,
    episode_schema,
    rollout_schema,
    topology_columns,
)

_NEEDED_OF_TURNS = ("turn_id", "tree_id", "step")
_DRAWN_OF_TURNS = (
    *(*_NEEDED_OF_TURNS, "parent_id", "task_id", "task_type", "branch", "member", "action", "observation", "valid"),
    *("boundary_entropy", STATE_SCORE, ALLOCATION, STEP_REWARD, AGENT),
)


#: From a rollout directory, the rows of a team's episode and its events, to what is shown of an event's ratio, by id.
Ratios = Callable[[Path, pd.DataFrame, Sequence[Event]], Mapping[str, str]]


def list_episodes(directory: Path) -> list[list[str]]:
    """Rows of (number, episode id, ending, return, turns)."""
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    return [
        [str(number), row["episode_id"], row["ending"], f"{row['return']:g}", str(row["length"])]
        for number, row in enumerate(episodes.to_dict("records"))
    ]


def list_trees(directory: Path) -> list[list[str]]:
    """Rows of (tree id, turns, leaves, their mean return) of the trees that fork."""
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    turns = read_shape(directory)
    rows = []
    for tree_id in forked_trees(turns):
        leaves = episodes.loc[episodes["tree_id"] == tree_id]
        mean = "" if leaves["return"].isna().all() else f"{leaves['return'].mean():g}"
        rows.append([tree_id, str((turns["tree_id"] == tree_id).sum()), str(len(leaves)), mean])
    return rows


def read_shape(directory: Path) -> pd.DataFrame:
    """Which turn of which tree follows which."""
    names = (*_NEEDED_OF_TURNS, "parent_id", "member")
    return read_columns(directory / "rollouts.parquet", rollout_schema(), _NEEDED_OF_TURNS, names)


def episode_lines(directory: Path, episode: str, ratios: Ratios | None = None) -> Iterator[str]:
    """The turns of one episode, by id or number, as lines of text; raises AgentRLError for an unknown one.

    ratios: what stands beside the advantages of a team's events.
    """
    chosen = _episode(directory, episode)
    turns = read_frame(directory / "rollouts.parquet", rollout_schema())
    yield f"{chosen['episode_id']} ({chosen['task_type']}): {chosen['ending']}, return {chosen['return']:g}"
    rows = episode_turns(turns, chosen)
    yield f"\n{first_prompt(rows, policy_of(directory))}"
    if AGENT in rows:
        yield from _team_lines(directory, rows, ratios)
        return
    if ratios is not None:
        raise AgentRLError("--policy shows the ratios of a team's events, and this episode is of a single agent")
    for turn in rows.to_dict("records"):
        valid = "" if turn["valid"] else "   (malformed)"
        yield f"\n[{turn['step']}] > {turn['action']}{valid}"
        yield f"    {turn['observation']}"


def _team_lines(directory: Path, rows: pd.DataFrame, ratios: Ratios | None) -> Iterator[str]:
    events = team_events(rows, policy_of(directory), _advantages(directory.parent / "advantage"))
    told = ratios(directory, rows, events) if ratios else {}
    for event in events:
        yield f"\n{event.heading}{told.get(event.event_id, '')}"
        yield from (f"  {line}" for line in event.lines)


def team_events(rows: pd.DataFrame, tokenizer: Path | None, advantages: pd.DataFrame | None = None) -> list[Event]:
    """The events of a team's episode, with what its members wrote where a tokenizer tells, otherwise their actions."""
    read = None if tokenizer is None else ChatCodec(load_tokenizer(tokenizer)).decode
    return events_to_read(rows, advantages, read)


def is_tree(directory: Path, name: str) -> bool:
    """Whether `name` is the id of a tree, and of no episode."""
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    return bool((read_shape(directory)["tree_id"] == name).any() and not (episodes["episode_id"] == name).any())


def read_tree(directory: Path, name: str) -> Tree:
    """The tree with the id `name`, or that of an episode, with the advantages of the iteration where they are there.

    Raises AgentRLError for an unknown one, and for a team's.
    """
    tree_id = name if is_tree(directory, name) else str(_episode(directory, name)["tree_id"])
    schema = rollout_schema()
    for column, kind in topology_columns().items():
        schema = schema.append(pa.field(column, kind))
    turns = read_columns(directory / "rollouts.parquet", schema, _NEEDED_OF_TURNS, _DRAWN_OF_TURNS)
    if AGENT in turns:
        raise AgentRLError(f"the members of a team's event are no forks; read it: agentrl show {directory} EPISODE")
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    return tree_of(turns, episodes, tree_id, _advantages(directory.parent / "advantage"))


def _advantages(directory: Path) -> pd.DataFrame | None:
    """Advantage and loss weight of every response, the mean over tokens where each has its own."""
    path = directory / "advantages.parquet"
    if not path.exists():
        return None
    names = ("turn_id", "advantage", "token_advantages", "loss_weight")
    frame = read_columns(path, advantage_schema(), ("turn_id", "loss_weight"), names)
    if "advantage" not in frame and "token_advantages" in frame:
        means = [sum(tokens) / len(tokens) if len(tokens) else 0.0 for tokens in frame["token_advantages"]]
        frame["advantage"] = means
    return frame


def _episode(directory: Path, episode: str) -> pd.Series:
    """The row of an episode, by id or number; raises AgentRLError for an unknown one."""
    episodes = read_frame(directory / "episodes.parquet", episode_schema())
    known = episodes["episode_id"] == episode
    if episode.isdigit() and int(episode) < len(episodes):
        known = pd.Series(range(len(episodes))) == int(episode)
    if not known.any():
        raise AgentRLError(
            f"{directory} holds no episode and no tree {episode!r}; list them with `agentrl show {directory}`"
        )
    return episodes.loc[known].iloc[0]


def episode_turns(turns: pd.DataFrame, episode: pd.Series) -> pd.DataFrame:
    """The rows of an episode from its root to its leaf, with all members of a team; chains may lack the parents."""
    own: pd.DataFrame = turns.loc[turns["tree_id"] == episode["tree_id"]]
    if AGENT in turns:
        return own.sort_values(["step", "member"])
    return own.sort_values("step") if own["parent_id"].isna().all() else path_of(own, str(episode["leaf_turn_id"]))


def first_prompt(rows: pd.DataFrame, policy: Path | None) -> str:
    """Text of an episode's first prompt, or its number of tokens where no policy tells how to read them."""
    ids = [] if rows.empty else list(rows.iloc[0]["prompt_ids"])
    return f"({len(ids)} prompt tokens)" if policy is None else ChatCodec(load_tokenizer(policy)).decode(ids)


def policy_of(directory: Path) -> Path | None:
    """The start policy of the results that `directory` lies in: all policies of a comparison share its tokenizer."""
    roots = (parent for parent in directory.resolve().parents if (parent / "experiment.json").exists())
    policy = next(roots, directory) / "sft" / "policy"
    return policy if policy.is_dir() else None
