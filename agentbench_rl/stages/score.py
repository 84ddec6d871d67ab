"""Stage `score`: what the trainer's own forward pass says of every sampled token, as far as the method needs it.

Log-probs and entropies under the policy that sampled, log-probs under the start policy, the critic's values. Where a
team's roles have policies of their own, every row is scored under the one that its column `policy` names. The processes
of torchrun share the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.config.advantage import Vine
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.policies.critic import open_critic
from agentbench_rl.policies.loading import load_policy, policy_names, policy_path
from agentbench_rl.stages.columns import read_columns
from agentbench_rl.stages.files import read_frame, write_rows
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.training.memory import memory_errors
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.scoring import Measure, TokenScores, policy_measure, score_tokens, sharded, value_measure
from agentbench_rl.training.sharding import shard_critic
from agentbench_rl.training.world import current_world, together
from agentbench_rl.types import (
    EXPLORER,
    TRUNCATED_ENDINGS,
    Progress,
    episode_schema,
    rollout_schema,
    score_schema,
    silent,
)

if TYPE_CHECKING:
    from torch import Tensor

#: What is read of an episode.
_OF_EPISODES = ("leaf_turn_id", "ending")


@dataclass(frozen=True)
class _Pass:
    """One model over rollouts: how to load it and what it measures, and the column that each measure goes to.

    turns: the responses that it measures; null: all.
    """

    load: Callable[[], tuple[Any, Measure]]
    columns: dict[str, str]
    turns: Collection[str] | None = None


def needs_scores(experiment: Experiment, algorithm: str) -> bool:
    """Whether a method has a score stage."""
    return bool(experiment.algorithms[algorithm].score_columns)


def score(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Score one iteration's rollouts under the policy that sampled them, its critic and the start policy."""
    method = experiment.algorithms[algorithm]
    inputs = _inputs(method, layout, layout.start(algorithm, seed, method.behaviour_version(iteration)))
    rollout = layout.stage(algorithm, seed, iteration, "rollout")
    inputs |= {"rollouts": rollout / "rollouts.parquet"}
    if "final_value" in method.score_columns:
        inputs["episodes"] = rollout / "episodes.parquet"

    def body(scratch: Path) -> StageReport:
        rollouts, columns, processed = together(_measured, experiment, method, inputs, progress=progress)
        turn_ids = rollouts["turn_id"].tolist()
        rows = [{"turn_id": turn} | {name: column[turn] for name, column in columns.items()} for turn in turn_ids]
        if "episodes" in inputs:
            _keep_final(rows, read_columns(inputs["episodes"], episode_schema(), _OF_EPISODES, _OF_EPISODES))
        write_rows(scratch / "scores.parquet", rows, score_schema())
        metrics = agreement(rollouts, columns["old_logprobs"]) if "old_logprobs" in columns else {}
        return StageReport(ledger={"processed_tokens": float(processed)}, metrics=metrics)

    return run_stage(
        "score",
        layout.stage(algorithm, seed, iteration, "score"),
        config=stage_config(experiment, "score", algorithm),
        inputs=inputs,
        body=body,
    )


def _measured(
    experiment: Experiment, method: AlgorithmConfig, inputs: Mapping[str, Path], progress: Progress = silent
) -> tuple[pd.DataFrame, dict[str, TokenScores], int]:
    """The rows that may be trained on, and what `_columns` returns; all processes measure together."""
    use_threads(experiment.threads)
    rollouts = _trainable(read_frame(inputs["rollouts"], rollout_schema()), method)
    policy = inputs["policy" if "policy" in inputs else "reference"]
    with memory_errors("scoring", policy, 1, experiment.training, current_world()):
        return rollouts, *_columns(experiment, _passes(experiment, method, inputs, rollouts), rollouts, progress)


def _trainable(rollouts: pd.DataFrame, method: AlgorithmConfig) -> pd.DataFrame:
    """The rows that may be trained on: where fresh continuations only estimate values, those of the backbones."""
    if isinstance(method.advantage, Vine) and not method.advantage_reads_scores:
        return rollouts[rollouts["branch"] == 0].reset_index(drop=True)
    return rollouts


def _inputs(method: AlgorithmConfig, layout: Layout, start: Path) -> dict[str, Path]:
    """The models that the method's columns come from."""
    wanted = set(method.score_columns)
    inputs = {}
    if wanted - {"reference_logprobs"}:
        inputs["policy"] = start / "policy"
    if "reference_logprobs" in wanted:
        inputs["reference"] = layout.sft / "policy"
    if "values" in wanted and start != layout.sft:
        inputs["critic"] = start / "critic"
    return inputs


def _passes(
    experiment: Experiment, method: AlgorithmConfig, inputs: Mapping[str, Path], rollouts: pd.DataFrame
) -> list[_Pass]:
    """One pass per model, so that no two of them are in memory at the same time."""
    wanted = set(method.score_columns)
    world, training = current_world(), experiment.training
    device = experiment.device if world.mesh is None else "cpu"  # a model's shards move to the device
    shared = method.critic is not None and method.critic.backbone == "shared"
    values = {"values": "values", "final_value": "next_values"}
    by_policy = {"old_logprobs": "logprobs", "entropies": "entropies"} | (values if shared else {})

    def policy(directory: Path) -> tuple[Any, Measure]:
        model = load_policy(directory, "float32", device)
        critic = open_critic(model, "shared", inputs.get("critic")) if shared else None
        if critic is not None:
            shard_critic(critic, training, world)
        measure = policy_measure(model, critic, entropy="entropies" in wanted)
        return model, sharded(model, measure, training, world)

    def reference() -> tuple[Any, Measure]:
        model = load_policy(inputs["reference"], "float32", device)
        return model, sharded(model, policy_measure(model), training, world)

    def separate() -> tuple[Any, Measure]:
        critic = open_critic(load_policy(inputs["policy"], "float32", device), "separate", inputs.get("critic"))
        shard_critic(critic, training, world)
        return critic, value_measure(critic)

    acting = _acting(inputs["policy"], rollouts) if "policy" in inputs else ()
    passes = [
        *(_Pass(partial(policy, directory), by_policy, turns) for directory, turns in acting),
        _Pass(reference, {"reference_logprobs": "logprobs"}),
        _Pass(separate, {} if shared else values),
    ]
    kept = [replace(one, columns={name: of for name, of in one.columns.items() if name in wanted}) for one in passes]
    return [one for one in kept if one.columns]


def _acting(directory: Path, rollouts: pd.DataFrame) -> Iterator[tuple[Path, Collection[str] | None]]:
    """The policies that sampled, and whose responses are whose; null: all are of the one there is."""
    if not policy_names(directory):
        yield directory, None
        return
    for name, rows in rollouts.groupby("policy"):
        yield policy_path(directory, str(name)), set(rows["turn_id"])


def _columns(
    experiment: Experiment, passes: list[_Pass], rollouts: pd.DataFrame, progress: Progress
) -> tuple[dict[str, TokenScores], int]:
    """Numbers [T] of every response's tokens by column and turn_id; tokens that went through a transformer."""
    training, world = experiment.training, current_world()
    processed = 0

    def counted(measure: Measure) -> Measure:
        def measure_and_count(batch: PackedBatch) -> Mapping[str, Tensor]:
            nonlocal processed
            processed += batch.input_ids.numel() if batch.spans else 0
            return measure(batch)

        return measure_and_count

    columns: dict[str, TokenScores] = {}
    for part, one in enumerate(passes):
        model, measure = one.load()
        scores = score_tokens(
            model,
            counted(measure),
            rollouts,
            training.micro_batch_tokens,
            training.dtype,
            training.packing,
            _part(progress, part, len(passes)),
            one.turns,
            world,
        )
        for name, measured in one.columns.items():
            columns.setdefault(name, {}).update(scores.get(measured, {}))
        del model, measure  # before the next one is loaded
    return columns, sum(world.gather(processed))


def _keep_final(rows: list[Json], episodes: pd.DataFrame) -> None:
    """Reduce `final_value` to the value of the state after a response, where an episode was cut; null elsewhere."""
    cut = set(episodes.loc[episodes["ending"].isin([str(ending) for ending in TRUNCATED_ENDINGS]), "leaf_turn_id"])
    for row in rows:
        after = row.pop("final_value")
        row["final_value"] = float(after[-1]) if row["turn_id"] in cut and len(after) else None


def _part(progress: Progress, part: int, parts: int) -> Progress:
    """Tell `progress` of one of several equal parts."""
    return lambda done, total: progress(part * total + done, parts * total)


def agreement(rollouts: pd.DataFrame, scored: TokenScores) -> dict[str, float]:
    """Largest and mean absolute difference between the sampler's and the trainer's log-probs of the same tokens.

    Rows that an earlier policy sampled, or an explorer beside the policy, and that are there as context or to be
    trained on once more, are left out.
    """
    explored = rollouts["policy"] == EXPLORER
    own = rollouts if explored.all() else rollouts[~explored]
    own = own[own["policy_version"] == own["policy_version"].max()]
    differences = [
        np.abs(np.asarray(sampled, dtype=np.float64) - scored[turn])
        for turn, sampled in zip(own["turn_id"], own["response_logprobs"], strict=True)
    ]
    flat = np.concatenate(differences) if differences else np.zeros(0)
    if not len(flat):
        return {"logprob_difference_max": 0.0, "logprob_difference_mean": 0.0}
    return {"logprob_difference_max": float(flat.max()), "logprob_difference_mean": float(flat.mean())}
