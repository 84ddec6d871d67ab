"""The rollout stage grows trees: their files keep the contract, repeat bit for bit, and are credited leaf by leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.stages.advantage import advantage
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.types import advantage_schema, episode_schema, rollout_schema

TOPOLOGIES = {
    "tree-grpo": {"trees": 2, "rounds": 2, "expansions": 1},
    "arpo": {"initial": 2, "leaves": 6, "base": 0.8},
}


def frames(directory: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    turns = read_frame(directory / "rollouts.parquet", rollout_schema())
    return turns, read_frame(directory / "episodes.parquet", episode_schema())


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_trees_are_written_repeatably_and_every_leaf_pays_its_whole_path(
    name: str, trained_copy: Callable[[], Layout]
) -> None:
    layout = trained_copy()
    again = {"again": {"base": name, "topology": TOPOLOGIES[name]}}
    asked = tiny(
        rollout=RAW["rollout"] | {"tasks_per_iteration": 2},
        algorithms={name: {"base": name, "topology": TOPOLOGIES[name]}} | again,
    )
    manifest = rollout(asked, layout, name, 0, 0)
    rollout(asked, layout, "again", 0, 0)
    directory, second = (layout.stage(method, 0, 0, "rollout") for method in (name, "again"))
    for file in ("rollouts.parquet", "episodes.parquet"):
        assert (directory / file).read_bytes() == (second / file).read_bytes()

    turns, episodes = frames(directory)
    assert Counter(episodes["group_id"]) == dict.fromkeys(turns["group_id"].unique(), 6)
    parents = dict(zip(turns["turn_id"], turns["parent_id"], strict=True))
    below = Counter[str]()
    for leaf, length in zip(episodes["leaf_turn_id"], episodes["length"], strict=True):
        path = [leaf]
        while isinstance(parent := parents[path[-1]], str):
            path.append(parent)
        assert len(path) == length
        below.update(path)
    assert set(below) == set(turns["turn_id"])
    forks = {(tree, branch) for tree, branch in zip(turns["tree_id"], turns["branch"], strict=True) if branch}
    assert manifest["ledger"]["forks"] == len(forks) > 0
    assert manifest["ledger"]["episodes"] == len(episodes)
    assert manifest["metrics"]["returns_per_task"] == 6
    assert 0 < manifest["metrics"]["branch_depth"] < 1
    assert manifest["metrics"]["branch_entropy"] > 0

    advantage(asked, layout, name, 0, 0)
    credit = read_frame(layout.stage(name, 0, 0, "advantage") / "advantages.parquet", advantage_schema())
    assert dict(zip(credit["turn_id"], credit["loss_weight"], strict=True)) == dict(below)
    assert max(below.values()) > 1
