"""Stage `update`: the algorithm-blind trainer, from advantages to the next policy, critic and trainer states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from agentbench_rl.config import Experiment, Json, TrainingConfig, stage_config, training_of, validated_iterations
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.policies.critic import open_critic, save_critic
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.stages.columns import read_columns
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, prune, run_stage
from agentbench_rl.stages.score import needs_scores
from agentbench_rl.stages.team import Checkpoint, own_policies
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.training.checkpoint import load_trainer_state, save_trainer_state
from agentbench_rl.training.critic import CriticInTraining
from agentbench_rl.training.memory import memory_errors
from agentbench_rl.training.sharding import full_weights, recompute_blocks, shard_critic, shard_policy
from agentbench_rl.training.trainer import UpdateResult, update_policy
from agentbench_rl.training.world import World, current_world, together
from agentbench_rl.types import SINGLE, AgentRLError, Progress, advantage_schema, rollout_schema, score_schema, silent


def update(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Train on one iteration's advantages; the checkpoint before it goes where `training.checkpoints` says so.

    Raises AgentRLError for rollouts of another policy than the schedule's.
    """
    _check_behaviour(experiment.algorithms[algorithm], layout, algorithm, seed, iteration)
    manifest = write_update(experiment, layout, algorithm, seed, iteration, progress)
    prune_before(experiment, layout, algorithm, seed, iteration)
    return manifest


def write_update(
    experiment: Experiment,
    layout: Layout,
    algorithm: str,
    seed: int,
    iteration: int,
    progress: Progress = silent,
    phase: int = 0,
) -> Json:
    """Write `policy/`, `trainer/` and `metrics.jsonl` (one line per optimizer step).

    Of roles with policies of their own, `policy/` and `trainer/` hold a subdirectory each. A method with a critic also
    has `critic/` and `critic_trainer/`. phase: of an iteration with several updates, so that each shuffles its own way.
    """
    inputs = _inputs(experiment, layout, algorithm, seed, iteration)
    training = training_of(experiment, algorithm)
    on_step = _teller(progress, training.epochs * training.minibatches)
    seeds = (seed, iteration, phase)

    def body(scratch: Path) -> StageReport:
        return _report(together(_train, experiment, algorithm, inputs, seeds, scratch, on_step=on_step))

    return run_stage(
        "update",
        layout.stage(algorithm, seed, iteration, "update"),
        config=stage_config(experiment, "update", algorithm),
        inputs=inputs,
        seeds={"seed": seed, "iteration": iteration, "phase": phase},
        body=body,
    )


def prune_before(experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int) -> None:
    """Remove what nothing will read of the checkpoint before an iteration, where `training.checkpoints` says so.

    With a schedule that lags, the next rollout is sampled with that one; then it is the one before it that goes.
    """
    method = experiment.algorithms[algorithm]
    before = iteration - 1 - method.staleness
    if experiment.training.checkpoints == "validated" and before >= 0:
        names = method.checkpoint
        validated = before in validated_iterations(experiment)
        prune(layout.stage(algorithm, seed, before, "update"), names[1:] if validated else names)


def _check_behaviour(method: AlgorithmConfig, layout: Layout, algorithm: str, seed: int, iteration: int) -> None:
    path = layout.stage(algorithm, seed, iteration, "rollout") / "rollouts.parquet"
    expected, column = method.behaviour_version(iteration), ("policy_version",)
    found = set(read_columns(path, rollout_schema(), column, column)[column[0]]) - {expected}
    if found:
        raise AgentRLError(
            f"{path}: sampled by version {min(found)} of the policy, but with schedule.kind: {method.schedule.kind} "
            f"iteration {iteration} is trained on what version {expected} samples; run agentrl rollout again"
        )


def _train(
    experiment: Experiment,
    algorithm: str,
    inputs: Mapping[str, Path],
    seeds: tuple[int, int, int],
    scratch: Path,
    on_step: Callable[..., None] | None = None,
) -> UpdateResult:
    """Update and write the checkpoint, and in the first process `metrics.jsonl`; all processes do so together."""
    use_threads(experiment.threads)
    world, training = current_world(), training_of(experiment, algorithm)
    method = experiment.algorithms[algorithm]
    names = own_policies(experiment)
    checkpoint = Checkpoint(inputs["policy"], inputs.get("trainer"), names, inputs.get("base"), training, world)
    with memory_errors("update", checkpoint.policy, len(names) or 1, training, world):
        return _updated(experiment, method, inputs, seeds, scratch, checkpoint, on_step)


def _updated(
    experiment: Experiment,
    method: AlgorithmConfig,
    inputs: Mapping[str, Path],
    seeds: tuple[int, int, int],
    scratch: Path,
    checkpoint: Checkpoint,
    on_step: Callable[..., None] | None,
) -> UpdateResult:
    world, training = checkpoint.world, checkpoint.training
    rollouts = _rollouts(inputs)
    models = checkpoint.models(rollouts, experiment.device, seeds[0])
    critic = _critic(method, inputs, models, experiment.device, training, world)
    for model in models.values():
        shard_policy(model, training, world)
    result = update_policy(
        models,
        checkpoint.states(models),
        rollouts,
        read_frame(inputs["scores"], score_schema()) if "scores" in inputs else None,
        read_frame(inputs["advantages"], advantage_schema()),
        training,
        method.loss,
        method.old_logprobs,
        *seeds,
        on_step=on_step,
        critic=critic,
        world=world,
    )
    checkpoint.write(scratch, models, result.states)
    if critic is not None and result.critic_state is not None:
        save_trainer_state(scratch / "critic_trainer", result.critic_state, world)
        weights = full_weights(critic.model, world)
        if world.leads:
            save_critic(critic.model, scratch / "critic", weights)
    if world.leads:
        lines = [json.dumps({"step": step, **metrics}, sort_keys=True) for step, metrics in enumerate(result.steps)]
        (scratch / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return result


def _inputs(experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int) -> dict[str, Path]:
    start = layout.start(algorithm, seed, iteration)
    credited = layout.stage(algorithm, seed, iteration, "advantage")
    inputs = {"policy": start / "policy"}
    inputs["rollouts"] = layout.stage(algorithm, seed, iteration, "rollout") / "rollouts.parquet"
    inputs["advantages"] = credited / "advantages.parquet"
    if (credited / "replayed.parquet").exists():
        inputs["replayed"] = credited / "replayed.parquet"
    if needs_scores(experiment, algorithm):
        inputs["scores"] = layout.stage(algorithm, seed, iteration, "score") / "scores.parquet"
    if start != layout.sft:
        inputs |= {name: start / name for name in experiment.algorithms[algorithm].checkpoint}
        if experiment.training.lora is not None:
            inputs["base"] = layout.sft / "policy"
    return inputs


def _critic(
    method: AlgorithmConfig,
    inputs: Mapping[str, Path],
    models: Mapping[str, Any],
    device: str,
    training: TrainingConfig,
    world: World,
) -> CriticInTraining | None:
    """The method's critic with its optimizer's state; one with a backbone of its own starts from the policy's."""
    if method.critic is None:
        return None
    separate = method.critic.backbone == "separate"
    device = device if world.mesh is None else "cpu"
    policy = load_policy(inputs["policy"], "float32", device) if separate else models[SINGLE]
    critic = open_critic(policy, method.critic.backbone, inputs.get("critic"))
    if separate and training.gradient_checkpointing:
        recompute_blocks(critic.backbone)
    shard_critic(critic, training, world)
    state = load_trainer_state(inputs["critic_trainer"], critic) if "critic_trainer" in inputs else None
    return CriticInTraining(critic, state, method.critic)


def _rollouts(inputs: Mapping[str, Path]) -> pd.DataFrame:
    """This iteration's responses, and the replayed ones."""
    own = read_frame(inputs["rollouts"], rollout_schema())
    if "replayed" not in inputs:
        return own
    return pd.concat([own, read_frame(inputs["replayed"], rollout_schema())], ignore_index=True)


def _teller(progress: Progress, total: int) -> Callable[..., None]:
    done = count(1)
    return lambda *_: progress(next(done), total)


def _report(result: UpdateResult) -> StageReport:
    """Means over the optimizer steps, and the tokens they trained on and processed."""
    names = sorted({name for step in result.steps for name in step})
    means = {}
    for name in names:
        values = [step[name] for step in result.steps if name in step]
        means[name] = sum(values) / len(values)
    totals = {
        name: sum(step.get(name, 0.0) for step in result.steps)
        for name in ("optimizer_steps", "trained_tokens", "processed_tokens")
    }
    return StageReport(ledger={**totals, "update_seconds": sum(result.seconds)}, metrics=means)
