"""The `reward_swap` schedule (RSPO): an iteration is an update by the outcome, on fresh and on collected episodes.

Every `period` iterations a loop begins, in which an explorer first fills the buffer (`explore`). An iteration samples
with the policy, draws from the loop's buffer (stage `replay`), and scores, credits and trains on both together. With
its last iteration the loop's buffer is emptied. Where nothing is drawn, an iteration is the host's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.algorithms.reward_swap import buffer_schema, draw, draw_metrics, drawn_episodes, mixed
from agentbench_rl.config import Experiment, Json, iteration_config
from agentbench_rl.stages.advantage import advantage, write_advantages
from agentbench_rl.stages.explore import BUFFER, buffer_of, explore
from agentbench_rl.stages.files import read_frame, readable, write_table
from agentbench_rl.stages.groups import sample_groups
from agentbench_rl.stages.layout import Layout, RoundLayout
from agentbench_rl.stages.loop import LoopIteration
from agentbench_rl.stages.manifest import StageReport, prune, run_stage
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.rollout import tasks_of_iteration
from agentbench_rl.stages.sampling import PolicyRef
from agentbench_rl.stages.score import score
from agentbench_rl.stages.update import prune_before, write_update
from agentbench_rl.types import Progress, episode_schema, rollout_schema, silent

#: What the advantage and score stages read of an episode.
_EPISODE = ("episode_id", "leaf_turn_id", "ending", "return")


def iterate(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> dict[str, Json]:
    """Run one iteration; returns the manifests of its stages by name.

    progress: told of the episodes, those of the explorer included.
    """
    run = LoopIteration(experiment, layout, algorithm, seed, iteration)
    manifests: dict[str, Json] = {}
    if run.place == 0:
        manifests["swap"] = explore(run, progress)
    manifests["rollout"] = _sample(run, progress)
    manifests["replay"] = _draw(run)
    replayed = manifests["replay"]["counts"]["replayed_responses"] > 0
    rows = run.stage("replay" if replayed else "rollout")
    view = RoundLayout(layout.root, run.stage("update").parent, run.before, rows)
    manifests["score"] = score(experiment, view, algorithm, seed, iteration)
    manifests["advantage"] = _credit(run, view) if replayed else advantage(experiment, view, algorithm, seed, iteration)
    manifests["update"] = write_update(experiment, view, algorithm, seed, iteration)
    _tidy(run)
    return manifests


def _sample(run: LoopIteration, progress: Progress) -> Json:
    """Play the tasks that the other methods play, but for the last ones, whose episodes are replaced."""
    counts = run.counts
    panel = load_panel(run.layout.panels, "train")
    tasks = tasks_of_iteration(panel, run.experiment.rollout.tasks_per_iteration, run.seed, run.number)
    policy = PolicyRef(run.start / "policy", "policy", run.number)
    explored = counts.episodes - counts.outcome_episodes if run.place == 0 else 0
    out, prefix = run.stage("rollout"), f"s{run.seed}.i{run.number}"
    return sample_groups(run, out, policy, tasks[: counts.fresh_tasks], prefix, run.after(explored, progress))


def _draw(run: LoopIteration) -> Json:
    """Write the drawn episodes, and beside them all rows to train on and the episodes that get an advantage anew."""
    own = {name: run.stage("rollout") / f"{name}.parquet" for name in ("rollouts", "episodes")}
    first = run.first

    def body(scratch: Path) -> StageReport:
        buffer = buffer_of(run)
        drawn = draw(buffer, run.schedule, run.counts, run.place, [run.seed, first.number])
        write_table(pa.Table.from_arrays(drawn.columns, schema=buffer_schema()), scratch / "drawn.parquet")
        if len(drawn):
            _write_rows(run, own, drawn, scratch)
        metrics = draw_metrics(buffer, drawn)
        metrics["replay_missing"] = run.counts.replayed - metrics["replayed_episodes"]
        fresh = len(read_frame(own["episodes"], episode_schema()))
        metrics["replay_share"] = metrics["replayed_episodes"] / (fresh + metrics["replayed_episodes"])
        return StageReport({"replayed_responses": len(drawn)}, metrics=metrics)

    return run_stage(
        "replay",
        run.stage("replay"),
        config=iteration_config(run.experiment, run.algorithm),
        inputs={"buffer": first.stage("swap") / BUFFER} | own,
        seeds=run.seeds,
        body=body,
        code="reward_swap",
    )


def _write_rows(run: LoopIteration, own: dict[str, Path], drawn: pa.Table, scratch: Path) -> None:
    """Write the rows of both; drawn episodes stand among the episodes only where a critic tells their advantages."""
    schema = rollout_schema()
    fresh = pa.Table.from_pandas(read_frame(own["rollouts"], schema), schema=schema, preserve_index=False)
    tables = [table.select(schema.names).cast(schema) for table in (fresh, drawn)]
    rows = pa.concat_tables([table.replace_schema_metadata(schema.metadata) for table in tables])
    write_table(rows, scratch / "rollouts.parquet")
    if run.method.critic is None:
        shutil.copy2(own["episodes"], scratch / "episodes.parquet")
        return
    frames = [read_frame(own["episodes"], episode_schema()), drawn_episodes(drawn)]
    kinds = pa.schema([episode_schema().field(name) for name in _EPISODE], metadata=episode_schema().metadata)
    both = pd.concat([frame[list(_EPISODE)] for frame in frames], ignore_index=True)
    write_table(pa.Table.from_pandas(both, schema=kinds, preserve_index=False), scratch / "episodes.parquet")


def _credit(run: LoopIteration, view: RoundLayout) -> Json:
    """Advantages of the fresh episodes as the host gives them, and the drawn ones' own, mixed as the schedule says."""
    replay, scored = run.stage("replay"), run.stage("score") / "scores.parquet"
    inputs = {name: replay / f"{name}.parquet" for name in ("rollouts", "episodes", "drawn")}
    if run.method.advantage_reads_scores:
        inputs["scores"] = scored

    def body(scratch: Path) -> StageReport:
        out = scratch / "advantages.parquet"
        metrics = write_advantages(replay, run.method, out, inputs.get("scores"), run.number)
        with readable(inputs["drawn"]):
            drawn = pq.read_table(inputs["drawn"])
        if run.method.critic is None:
            metrics["dropped_rows"] -= len(drawn)
        write_table(mixed(pq.read_table(out), drawn, run.schedule), out)
        return StageReport(metrics=metrics)

    return run_stage(
        "advantage",
        run.stage("advantage"),
        config=run.config("advantage"),
        inputs=inputs,
        seeds={"iteration": run.number},
        body=body,
        code="reward_swap",
    )


def _tidy(run: LoopIteration) -> None:
    """Remove what nothing will read again: the checkpoint before, and with a loop's last iteration its buffer."""
    prune_before(run.experiment, run.layout, run.algorithm, run.seed, run.number)
    if run.shares_critic:
        prune(run.stage("swap"), run.method.checkpoint)
    if run.place == run.schedule.period - 1:
        prune(run.first.stage("swap"), [BUFFER])
