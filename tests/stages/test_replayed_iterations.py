"""Replay through files: iterations of the advantage stage with a small memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replay_runs import iteration_files
from tiny_experiment import tiny

from agentbench_rl.algorithms.replay import replay_weight
from agentbench_rl.config import Experiment
from agentbench_rl.stages.advantage import advantage, write_advantages
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.types import AgentRLError, advantage_schema, rollout_schema

#: Two groups per iteration: four turns with a positive advantage, but none in iteration 2.
RETURNS = [
    {"a": [1.0, 0.0], "b": [0.0, 1.0]},
    {"a": [1.0, 0.0], "c": [1.0, 0.0]},
    {"b": [1.0, 1.0], "c": [0.0, 0.0]},
    {"a": [0.0, 1.0], "b": [1.0, 0.0]},
    {"a": [0.0, 1.0], "c": [1.0, 0.0]},
]
#: Eight turns are more than six: iteration 2 replays those of iterations 0 and 1.
REPLAY = {"capacity": 6, "fill": 1.0, "warmup_iterations": 4, "max_age": 3}


def experiment(**changes: object) -> Experiment:
    host = {"source": "test", "advantage": {"estimator": "group_mean"}}
    spear = host | {"replay": REPLAY} | changes
    return tiny(algorithms={"host": host, "spear": spear})


def sampled(root: Path) -> Layout:
    """Rollouts and scores of all iterations of both methods."""
    layout = Layout(root)
    for iteration, returns in enumerate(RETURNS):
        files = iteration_files(returns, iteration)
        for method in ("host", "spear"):
            for name, table in files.items():
                path = (
                    layout.stage(method, 0, iteration, "score" if name == "scores" else "rollout") / f"{name}.parquet"
                )
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(table, path)
    return layout


def run(layout: Layout, method: str = "spear", iterations: int = len(RETURNS), **changes: object) -> list[Path]:
    """Score iterations; their advantage directories."""
    for iteration in range(iterations):
        advantage(experiment(**changes), layout, method, 0, iteration)
    return [layout.stage(method, 0, iteration, "advantage") for iteration in range(iterations)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.parquet")}


def test_what_was_held_is_replayed_once_and_the_memory_begins_anew(tmp_path: Path) -> None:
    directories = run(sampled(tmp_path))
    assert [(directory / "replayed.parquet").exists() for directory in directories] == [
        False,
        False,
        True,
        False,
        False,
    ]
    metrics = [read_manifest(directory)["metrics"] for directory in directories]
    assert [one["replay_held"] for one in metrics] == [4.0, 8.0, 0.0, 4.0, 8.0]
    assert [one["replayed_responses"] for one in metrics] == [0.0, 0.0, 6.0, 0.0, 0.0]


def test_replayed_responses_follow_the_iterations_own_with_their_source(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    directory = run(layout)[2]
    frame = read_frame(directory / "advantages.parquet", advantage_schema())
    own = layout.stage("spear", 0, 2, "rollout") / "rollouts.parquet"
    assert frame["turn_id"].tolist()[:8] == pd.read_parquet(own)["turn_id"].tolist()
    assert frame["source"].isna().tolist() == [True] * 8 + [False] * 6
    replayed = frame[8:]
    assert set(replayed["source"]) == {"replay"}
    assert set(replayed["source_weight"]) == {np.float32(replay_weight(2, 4))}
    assert set(replayed["advantage"]) == {0.5}
    assert all(list(values) == [-0.25, -0.25] for values in replayed["old_logprobs"])


def test_replayed_episodes_are_whole_sequences_beside_the_iterations_own(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    directory = run(layout)[2]
    own = read_frame(layout.stage("spear", 0, 2, "rollout") / "rollouts.parquet", rollout_schema())
    again = read_frame(directory / "replayed.parquet", rollout_schema())
    for name, schema in (("replayed", rollout_schema()), ("advantages", advantage_schema())):
        written = pq.read_schema(directory / f"{name}.parquet")
        assert (written.equals(schema), written.metadata) == (True, schema.metadata)
    credited = read_frame(directory / "advantages.parquet", advantage_schema())
    assert set(credited["turn_id"][8:]) == set(again["turn_id"])
    sequences = training_sequences(pd.concat([own, again], ignore_index=True))
    assert sorted(len(sequence.responses) for sequence in sequences) == [2] * 7
    assert len({response.turn_id for sequence in sequences for response in sequence.responses}) == 14


def test_the_sampler_s_logprobs_are_remembered_where_the_method_trains_with_them(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    shutil.rmtree(layout.stage("spear", 0, 0, "score"))
    frame = read_frame(run(layout, iterations=3, old_logprobs="sampler")[2] / "advantages.parquet", advantage_schema())
    assert all(list(values) == [-0.5, -0.5] for values in frame["old_logprobs"][8:])


def test_iterations_without_replay_are_the_host_s_to_the_byte(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    for host, spear in zip(run(layout, "host"), run(layout), strict=True):
        assert [path.name for path in host.glob("*.parquet")] == ["advantages.parquet"]
        same = (host / "advantages.parquet").read_bytes() == (spear / "advantages.parquet").read_bytes()
        assert same == (not (spear / "replayed.parquet").exists())


def test_a_foreign_directory_gets_the_host_s_advantages_alone(tmp_path: Path) -> None:
    layout = sampled(tmp_path / "run")
    out = tmp_path / "out" / "advantages.parquet"
    write_advantages(layout.stage("spear", 0, 2, "rollout"), experiment().algorithms["spear"], out)
    assert out.read_bytes() == (run(layout, "host")[2] / "advantages.parquet").read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["advantages.parquet"]


def test_only_the_newest_memory_stays_and_finished_iterations_stay_finished(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    directories = run(layout)
    assert [(directory / "buffer.parquet").exists() for directory in directories] == [False] * 4 + [True]
    assert [(directory / "history.parquet").exists() for directory in directories] == [False] * 4 + [True]
    finished = [read_manifest(directory)["finished"] for directory in directories]
    before = [files(directory) for directory in directories]
    run(layout)
    assert [read_manifest(directory)["finished"] for directory in directories] == finished
    assert [files(directory) for directory in directories] == before


@pytest.mark.parametrize("lost", [1, 3, 4])
def test_work_that_was_lost_after_its_memory_was_pruned_comes_out_the_same(tmp_path: Path, lost: int) -> None:
    layout = sampled(tmp_path)
    directories = run(layout)
    before = [files(directory) for directory in directories]
    shutil.rmtree(directories[lost])
    run(layout)
    for directory, expected in zip(directories, before, strict=True):
        assert {name: content for name, content in files(directory).items() if name in expected} == expected


def test_a_damaged_memory_is_refused(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    path = run(layout, iterations=2)[1] / "buffer.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(AgentRLError, match=r"buffer.parquet: not a readable Parquet file"):
        advantage(experiment(), layout, "spear", 0, 2)


def test_a_memory_without_a_column_is_refused(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    path = run(layout, iterations=2)[1] / "buffer.parquet"
    pq.write_table(pq.read_table(path).drop_columns("replay_return"), path)
    with pytest.raises(AgentRLError, match="'replay_return' is missing"):
        advantage(experiment(), layout, "spear", 0, 2)


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        ({b"agentbench_rl.replay": b'{"algorithm": "spear", "seed": 0, "iteration": 0}'}, '"iteration": 0'),
        ({b"agentbench_rl.replay": b'{"algorithm": "spear", "seed": 1, "iteration": 1}'}, '"seed": 1'),
        ({b"agentbench_rl.replay": b'{"algorithm": "other", "seed": 0, "iteration": 1}'}, '"algorithm": "other"'),
        ({}, "no run"),
    ],
)
def test_the_memory_of_another_run_is_refused(tmp_path: Path, identity: dict[bytes, bytes], told: str) -> None:
    layout = sampled(tmp_path)
    path = run(layout, iterations=2)[1] / "buffer.parquet"
    table: pa.Table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata(identity), path)
    with pytest.raises(AgentRLError, match=rf"buffer.parquet: a memory of .*{told}.*expected"):
        advantage(experiment(), layout, "spear", 0, 2)


def test_scores_that_lack_old_logprobs_are_refused(tmp_path: Path) -> None:
    layout = sampled(tmp_path)
    path = layout.stage("spear", 0, 0, "score") / "scores.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(AgentRLError, match=r"scores: turn .* is missing"):
        advantage(experiment(), layout, "spear", 0, 0)
