"""The rollout stage with dynamic sampling and with greedy baselines, on the smallest experiment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.rollout import resampling
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.types import AgentRLError, rollout_schema


def experiment(**algorithms: dict[str, object]) -> Experiment:
    """Two tasks per iteration, of a start policy that never succeeds."""
    return tiny(rollout=RAW["rollout"] | {"tasks_per_iteration": 2}, algorithms=algorithms)


def method(**topology: object) -> dict[str, object]:
    return {"base": "grpo", "topology": {"group_size": 2} | topology}


def files(layout: Layout, algorithm: str) -> list[bytes]:
    directory = layout.stage(algorithm, 0, 0, "rollout")
    return [(directory / f"{name}.parquet").read_bytes() for name in ("rollouts", "episodes")]


def test_one_round_writes_the_files_of_the_plain_rollout(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    asked = experiment(plain=method(), dapo=method(resample={"max_tries": 1}))
    for name in asked.algorithms:
        rollout(asked, layout, name, 0, 0)
    assert files(layout, "plain") == files(layout, "dapo")
    manifest = read_manifest(layout.stage("dapo", 0, 0, "rollout"))
    assert manifest is not None
    assert (manifest["counts"]["rounds"], manifest["counts"]["discarded_groups"]) == (1, 0)


def test_rounds_are_paid_for_repeatable_and_begin_with_the_shared_tasks(
    trained_copy: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start policy never succeeds: let the first group of every round be an informative one."""
    monkeypatch.setattr(resampling, "informative_groups", lambda returns, groups: np.arange(groups.max() + 1) == 0)
    layout = trained_copy()
    asked = experiment(plain=method(), dapo=method(resample={}))
    told: list[tuple[int, int]] = []
    plain = rollout(asked, layout, "plain", 0, 0)
    manifest = rollout(asked, layout, "dapo", 0, 0, lambda done, total: told.append((done, total)))
    assert (manifest["counts"]["rounds"], manifest["counts"]["discarded_groups"]) == (2, 2)
    assert manifest["metrics"]["informative_groups"] == 0.5
    ledger = manifest["ledger"]
    assert ledger["episodes"] == 8
    assert told[-1] == (8, 8)
    assert ledger["environment_steps"] == ledger["model_calls"] > plain["ledger"]["environment_steps"]

    directory = layout.stage("dapo", 0, 0, "rollout")
    turns = pd.read_parquet(directory / "rollouts.parquet")
    own = pd.read_parquet(layout.stage("plain", 0, 0, "rollout") / "rollouts.parquet")
    first, second = turns["group_id"].unique()
    assert first == own["group_id"].iloc[0]
    assert second.startswith("s0.i0.r1.")
    assert turns["task_id"].nunique() == 2
    ours, theirs = (frame[frame["group_id"] == first].reset_index(drop=True) for frame in (turns, own))
    pd.testing.assert_frame_equal(ours, theirs)

    before = files(layout, "dapo")
    for path in directory.iterdir():
        path.unlink()
    rollout(asked, layout, "dapo", 0, 0)
    assert files(layout, "dapo") == before


def test_too_few_informative_groups_stop_the_stage_where_that_is_asked_for(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    asked = experiment(dapo=method(resample={"max_tries": 2, "exhausted": "raise"}))
    with pytest.raises(AgentRLError, match="0 of 2 groups are informative after 2 rounds"):
        rollout(asked, layout, "dapo", 0, 0)
    assert read_manifest(layout.stage("dapo", 0, 0, "rollout")) is None


def test_greedy_baselines_are_a_column_of_the_topology_and_enter_no_metric(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    remax = {
        "source": "ReMax",
        "advantage": {"estimator": "remax"},
        "topology": {"group_size": 2, "greedy_baseline": True},
    }
    asked = experiment(plain=method(), remax=remax)
    plain, greedy = (rollout(asked, layout, name, 0, 0) for name in asked.algorithms)
    directory = layout.stage("remax", 0, 0, "rollout")
    schema = pq.read_schema(directory / "rollouts.parquet")
    assert schema.names == [*rollout_schema().names, "chains_greedy"]
    assert schema.metadata == rollout_schema().metadata
    turns = read_frame(directory / "rollouts.parquet", rollout_schema())
    assert set(turns.loc[turns["chains_greedy"], "tree_id"]) == {f"{group}.greedy" for group in turns["group_id"]}
    own = read_frame(layout.stage("plain", 0, 0, "rollout") / "rollouts.parquet", rollout_schema())
    sampled = turns[~turns["chains_greedy"]].drop(columns="chains_greedy").reset_index(drop=True)
    pd.testing.assert_frame_equal(sampled, own)
    assert greedy["metrics"] == pytest.approx(plain["metrics"], rel=1e-5)
    assert greedy["ledger"]["episodes"] == plain["ledger"]["episodes"] + 2 == 6
