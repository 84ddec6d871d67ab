"""Stage `advantage`: a method's credit assignment, from rollout files to `advantages.parquet`; CPU only, pure."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.frames import columns_needed
from agentbench_rl.algorithms.scores import score_columns_read
from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.stages.columns import read_columns, read_lengths
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.replay import ReplayedRun
from agentbench_rl.types import (
    AgentRLError,
    advantage_schema,
    episode_schema,
    rollout_schema,
    score_schema,
    topology_columns,
)

_NEEDED_OF_TURNS = ("turn_id", "task_id", "group_id", "tree_id", "step")
_NEEDED_OF_EPISODES = ("episode_id", "leaf_turn_id", "ending")
#: What every method reads of the rollouts where it is there.
_READ_OF_TURNS = (*_NEEDED_OF_TURNS, "parent_id", "branch", "event_id", "member", "valid", "reward")
_READ_OF_EPISODES = (*_NEEDED_OF_EPISODES, "tree_id", "return")
_ROW_GROUP = 1 << 16


def advantage(experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int) -> Json:
    """Compute the advantages of one iteration."""
    method = experiment.algorithms[algorithm]
    rollout = layout.stage(algorithm, seed, iteration, "rollout")
    inputs = {name: rollout / f"{name}.parquet" for name in ("rollouts", "episodes")}
    if method.advantage_reads_scores:
        inputs["scores"] = layout.stage(algorithm, seed, iteration, "score") / "scores.parquet"

    replayed = ReplayedRun(layout, algorithm, method, seed) if method.replay is not None else None
    if replayed is not None:
        inputs |= replayed.memory_inputs(iteration)

    def body(scratch: Path) -> StageReport:
        out = scratch / "advantages.parquet"
        metrics = write_advantages(rollout, method, out, inputs.get("scores"), iteration)
        if replayed is not None:
            metrics |= replayed.write(iteration, scratch)
        return StageReport(metrics=metrics)

    manifest = run_stage(
        "advantage",
        layout.stage(algorithm, seed, iteration, "advantage"),
        config=stage_config(experiment, "advantage", algorithm),
        inputs=inputs,
        seeds={"iteration": iteration},
        body=body,
    )
    if replayed is not None:
        replayed.prune(iteration)
    return manifest


def write_advantages(
    directory: Path, algorithm: AlgorithmConfig, out: Path, scores: Path | None = None, iteration: int = 0
) -> dict[str, float]:
    """Score any rollouts directory in the contract's format, foreign ones included; returns diagnostics.

    scores: a file for methods that read one; None: `scores.parquet` of the directory, where it is there. Only the
    columns that the method reads are decoded. Raises AgentRLError for missing files or columns, and for advantages
    that are not finite.
    """
    if out.is_dir():
        raise AgentRLError(f"{out} is a directory; name the file that the advantages go to")
    frame, diagnostics = advantages_of(directory, algorithm, scores, iteration)
    too_large = "advantage" in frame and (frame["advantage"].abs() > np.finfo(np.float32).max).any()
    if too_large or not math.isfinite(diagnostics.get("advantage_std", 0.0)):
        raise AgentRLError(f"{directory}: the advantages are not finite; check the rewards in rollouts.parquet")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    pq.write_table(_table(frame), partial, row_group_size=_ROW_GROUP, compression="zstd", use_dictionary=False)
    partial.replace(out)
    return diagnostics


def advantages_of(
    directory: Path, algorithm: AlgorithmConfig, scores: Path | None = None, iteration: int = 0
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Advantages of a rollouts directory and diagnostics, as `compute_advantages` gives them."""
    return compute_advantages(
        _rollouts(directory / "rollouts.parquet", algorithm),
        read_columns(directory / "episodes.parquet", episode_schema(), _NEEDED_OF_EPISODES, _READ_OF_EPISODES),
        algorithm,
        _scores(directory / "scores.parquet" if scores is None else scores, algorithm, required=scores is not None),
        iteration,
    )


def _rollouts(path: Path, algorithm: AlgorithmConfig) -> pd.DataFrame:
    needed = columns_needed(algorithm)
    schema = rollout_schema().append(pa.field("response_tokens", pa.int64()))
    for name, kind in topology_columns().items():
        schema = schema.append(pa.field(name, kind))
    rollouts = read_columns(path, schema, _NEEDED_OF_TURNS, (*_READ_OF_TURNS, *topology_columns(), *needed))
    lengths = read_lengths(path, "response_ids") if "response_tokens" in needed else None
    return rollouts if lengths is None else rollouts.assign(response_tokens=lengths)


def _scores(path: Path, algorithm: AlgorithmConfig, *, required: bool) -> pd.DataFrame | None:
    if not algorithm.advantage_reads_scores or not (required or path.exists()):
        return None
    return read_columns(path, score_schema(), ("turn_id",), ("turn_id", *score_columns_read(algorithm)))


def _table(frame: pd.DataFrame) -> pa.Table:
    """The frame under the schema of advantages; absent columns are null."""
    schema = advantage_schema()
    columns = [
        pa.array(frame[field.name], field.type, from_pandas=True)
        if field.name in frame
        else pa.nulls(len(frame), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
