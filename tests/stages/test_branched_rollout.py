"""Trees through the whole stage chain on the smallest experiment: files, ledger, thresholds, repeatability."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.envs.alfworld.engine import AlfworldEngine
from agentbench_rl.rollout.episode import Boundary, RunningEpisode
from agentbench_rl.stages.files import read_frame, sha256
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.stages.train import train
from agentbench_rl.types import SIBLINGS, AgentRLError, InfrastructureError, episode_schema, rollout_schema, silent

#: Paid for malformed turns, so that even an unskilled policy has something to learn from.
REWARD = {"invalid_action_penalty": 0.1}
PANELS = {name: {"split": name, "size": 2} for name in ("train", "validation", "test")}


def experiment(estimator: str = "sibling", faults: Json | None = None, **topology: Any) -> Experiment:
    """One method of trees; faults: settings of the rollout about them."""
    tree = {"kind": "branch", "points": 1, "siblings": 3, "spacing": 0, **topology}
    method = {"source": "a tree", "advantage": {"estimator": estimator}, "topology": tree, "reward": REWARD}
    limits = RAW["rollout"] | {"tasks_per_iteration": 2} | (faults or {})
    return tiny(rollout=limits, algorithms={"tree": method})


def run(asked: Experiment, layout: Layout, iterations: int) -> list[Json]:
    """Manifests of the rollouts of a run."""
    train(asked, layout, "tree", 0, range(iterations), lambda *_: silent, lambda *_: None)
    manifests = [read_manifest(layout.stage("tree", 0, iteration, "rollout")) for iteration in range(iterations)]
    return [manifest for manifest in manifests if manifest is not None]


def test_the_group_of_a_sibling_that_died_is_rejected_and_counted(
    trained_copy: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first restore fails: of the two points one is not complete, and nothing of its fresh siblings is trained."""
    restore, calls = AlfworldEngine.restore, count()

    def fail_once(self: AlfworldEngine, snapshot: object) -> None:
        if next(calls) == 0:
            raise InfrastructureError("a lost container")
        restore(self, snapshot)

    monkeypatch.setattr(AlfworldEngine, "restore", fail_once)
    layout = trained_copy()
    (manifest,) = run(experiment(faults={"retries": 0, "max_fault_share": 1.0}), layout, 1)
    assert manifest["metrics"]["incomplete_groups"] == 1.0
    assert manifest["counts"]["env_error"] == 1
    credited = read_manifest(layout.stage("tree", 0, 0, "advantage"))
    assert credited is not None
    assert (credited["metrics"]["branch_groups"], credited["metrics"]["rejected_groups"]) == (1.0, 1.0)
    turns = turns_of(layout).set_index("turn_id")
    trained = pq.read_table(layout.stage("tree", 0, 0, "advantage") / "advantages.parquet").to_pandas()
    rejected = turns.index[turns["tree_id"].eq(turns["tree_id"].iloc[0]) & turns["branch"].gt(0)]
    assert len(rejected)
    assert (trained.set_index("turn_id")["loss_weight"].reindex(rejected).fillna(0.0) == 0.0).all()


def test_an_environment_without_snapshots_is_refused_before_anything_runs() -> None:
    custom = {"name": "custom", "factory": "somewhere:Game", "forkable": False}
    asked = tiny(environment=custom, algorithms={"tree": {"base": "bpo"}}, panels=PANELS)
    with pytest.raises(AgentRLError, match=r"algorithm tree: topology.kind: branch needs snapshots to fork from"):
        check_experiment(asked)


def turns_of(layout: Layout, iteration: int = 0) -> pd.DataFrame:
    return read_frame(layout.stage("tree", 0, iteration, "rollout") / "rollouts.parquet", rollout_schema())


@pytest.mark.parametrize(
    ("estimator", "topology"),
    [
        ("sibling", {"points": 2, "trees": 2}),
        ("tree_weighted", {"points": 2, "trees": 2, "select": "online_threshold", "first_threshold": 0.0}),
        ("vine", {"trees": 2, "siblings": 2, "select": "every"}),
    ],
)
def test_a_tree_runs_through_rollout_advantage_and_update(
    estimator: str, topology: dict[str, Any], trained_copy: Callable[[], Layout]
) -> None:
    layout = trained_copy()
    (manifest,) = run(experiment(estimator, **topology), layout, 1)
    turns = turns_of(layout)
    episodes = read_frame(layout.stage("tree", 0, 0, "rollout") / "episodes.parquet", episode_schema())
    assert turns["tree_id"].nunique() == 4
    assert set(turns.loc[turns[SIBLINGS] > 0, SIBLINGS]) == {3}
    if estimator == "vine":
        assert (turns.loc[turns["branch"] == 0, SIBLINGS] == 3).all()
    assert (turns.loc[turns["branch"] > 0, SIBLINGS] == 0).all()
    assert len(episodes) == 4 + 2 * int((turns[SIBLINGS] > 0).sum())
    assert set(turns["parent_id"].dropna()) <= set(turns["turn_id"])
    assert manifest["metrics"]["snapshots_left"] == 0.0
    assert manifest["ledger"]["forks"] == len(episodes) - 4
    assert manifest["ledger"]["snapshots"] == int((turns["branch"] == 0).sum())
    assert manifest["ledger"]["sampled_tokens"] == turns["response_ids"].map(len).sum()
    assert (layout.stage("tree", 0, 0, "update") / "policy" / "model.safetensors").exists()
    scored = pq.read_table(layout.stage("tree", 0, 0, "score") / "scores.parquet")["turn_id"].to_pylist()
    trainable = turns if estimator != "vine" else turns[turns["branch"] == 0]
    assert scored == trainable["turn_id"].tolist()


def test_a_snapshot_that_something_still_holds_is_told(
    trained_copy: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Boundary] = []
    original = RunningEpisode.boundary

    def keep_first(self: RunningEpisode) -> Boundary:
        moment = original(self)
        kept.extend([moment] if not kept else [])
        return moment

    monkeypatch.setattr(RunningEpisode, "boundary", keep_first)
    manifest = rollout(experiment(), trained_copy(), "tree", 0, 0)
    assert manifest["metrics"]["snapshots_left"] == len(kept) == 1


def test_the_same_seed_gives_the_same_files(trained_copy: Callable[[], Layout], tmp_path: Path) -> None:
    one = trained_copy()
    asked = experiment(points=1.5)
    first = run_rollout(asked, one)
    for name in ("rollouts", "episodes", "manifest"):
        suffix = "json" if name == "manifest" else "parquet"
        (one.stage("tree", 0, 0, "rollout") / f"{name}.{suffix}").unlink()
    assert run_rollout(asked, one) == first


def run_rollout(asked: Experiment, layout: Layout) -> list[str]:
    rollout(asked, layout, "tree", 0, 0)
    return [sha256(layout.stage("tree", 0, 0, "rollout") / f"{name}.parquet") for name in ("rollouts", "episodes")]


def test_an_online_threshold_is_taken_of_the_iteration_before(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    asked = experiment(select="online_threshold", first_threshold=1e9)
    first, second = run(asked, layout, 2)
    assert (first["metrics"]["branch_threshold"], first["metrics"]["branch_points"]) == (1e9, 0.0)
    before = turns_of(layout)
    entropy = np.sort(before.loc[before["branch"] == 0, "boundary_entropy"].to_numpy(np.float64))[::-1]
    threshold = entropy[before["tree_id"].nunique() - 1]
    assert second["metrics"]["branch_threshold"] == threshold
    after = turns_of(layout, 1)
    backbones = after[after["branch"] == 0]
    reached = backbones[backbones["boundary_entropy"] >= threshold].groupby("tree_id").head(1)
    assert set(backbones.loc[backbones[SIBLINGS] > 0, "turn_id"]) == set(reached["turn_id"])
    assert "entropies" in second["identity"]["inputs"]
    assert "entropies" not in first["identity"]["inputs"]
