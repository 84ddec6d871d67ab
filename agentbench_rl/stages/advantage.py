"""Stage `advantage`: a method's credit assignment, from rollout files to `advantages.parquet`; CPU only, pure."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.types import AgentRLError, advantage_schema, episode_schema, rollout_schema


def advantage(experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int) -> Json:
    """Compute the advantages of one iteration."""
    rollout = layout.stage(algorithm, seed, iteration, "rollout")

    def body(scratch: Path) -> StageReport:
        metrics = write_advantages(rollout, experiment.algorithms[algorithm], scratch / "advantages.parquet")
        return StageReport(metrics=metrics)

    return run_stage(
        "advantage",
        layout.stage(algorithm, seed, iteration, "advantage"),
        config=stage_config(experiment, "advantage", algorithm),
        inputs={name: rollout / f"{name}.parquet" for name in ("rollouts", "episodes")},
        body=body,
    )


def write_advantages(directory: Path, algorithm: AlgorithmConfig, out: Path) -> dict[str, float]:
    """Score any rollouts directory in the contract's format, foreign ones included; returns diagnostics.

    Raises AgentRLError for missing files or columns, and for advantages that are not finite.
    """
    if out.is_dir():
        raise AgentRLError(f"{out} is a directory; name the file that the advantages go to")
    rollouts = read_frame(directory / "rollouts.parquet", foreign(rollout_schema(), _NEEDED_OF_TURNS))
    episodes = read_frame(directory / "episodes.parquet", foreign(episode_schema(), _NEEDED_OF_EPISODES))
    absent = [name for name in rollouts if rollouts[name].isna().all() and name not in _NEEDED_OF_TURNS]
    frame, diagnostics = compute_advantages(rollouts.drop(columns=absent), episodes, algorithm)
    if not frame["advantage"].map(float).map(_finite).all():
        raise AgentRLError(f"{directory}: the advantages are not finite; check the rewards in rollouts.parquet")
    table = pa.Table.from_pylist(frame.to_dict("records"), schema=advantage_schema())
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    pq.write_table(table, partial, compression="zstd")
    partial.replace(out)
    return diagnostics


_NEEDED_OF_TURNS = frozenset({"turn_id", "task_id", "group_id", "tree_id", "step"})
_NEEDED_OF_EPISODES = frozenset({"episode_id", "leaf_turn_id", "ending"})


def foreign(schema: pa.Schema, needed: frozenset[str]) -> pa.Schema:
    """The schema with every column nullable but the needed ones: what foreign files may leave out."""
    return pa.schema([field.with_nullable(field.name not in needed) for field in schema])


def _finite(value: float) -> bool:
    return value - value == 0.0
