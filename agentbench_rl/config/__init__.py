"""Configuration: the pydantic models of an experiment, and which part of it each stage reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.config.schedule import PostStep, RewardSwap
from agentbench_rl.config.settings import Above0, Positive, Seed, Settings, Share
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.config.topology import Team

Json = dict[str, Any]
Packing = Literal["auto", "rows", "packed", "tree"]


class TinyModel(Settings):
    """A Llama-architecture policy built from scratch with a byte-level BPE tokenizer trained on the demonstrations.

    initializer_range: standard deviation of the first weights; with about 1/√hidden_size, attention learns to copy
    from the observation much sooner than with the default of large models.
    """

    kind: Literal["tiny"] = "tiny"
    vocabulary: Positive = 1024
    hidden_size: Positive = 128
    intermediate_size: Positive = 384
    layers: Positive = 4
    heads: Positive = 4
    key_value_heads: Positive = 1
    max_positions: Positive = 2048
    initializer_range: Above0 = 0.02


class PretrainedModel(Settings):
    """Any causal LM of transformers, by hub name or directory."""

    kind: Literal["pretrained"]
    name_or_path: str
    revision: str | None = None


class ModelConfig(Settings):
    """The policy's architecture and how much of an episode it sees."""

    architecture: Annotated[TinyModel | PretrainedModel, Field(discriminator="kind")] = TinyModel()
    context: Literal["append", "window"] = "append"
    window_turns: Positive = 2


class PanelConfig(Settings):
    """A panel: `size` tasks drawn once from `split`, or all of them."""

    split: str
    size: Positive | Literal["all"]


class PanelsConfig(Settings):
    """The three disjoint panels of an experiment.

    seed: of the draw from the tasks there are. A generator that makes as many as are asked for has its own:
    `environment.generator.seed`.
    """

    train: PanelConfig
    validation: PanelConfig
    test: PanelConfig
    seed: Seed = 0


class DemosConfig(Settings):
    """Expert episodes on training tasks; `failure_rate` is the chance of a failed action before an expert action."""

    episodes: Positive
    expert: Literal["search", "planner", "walkthrough", "scripted", "oracle"] = "search"
    failure_rate: Share = 0.1
    seed: Seed = 0


class SftConfig(Settings):
    """Behaviour cloning of the start policy."""

    steps: Annotated[int, Field(ge=0)]
    batch_tokens: Positive = 4096
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    seed: Seed = 0
    threads: Positive = 1


class DenseModelConfig(Settings):
    """A model of dense rewards, trained to predict the outcome of an episode as the sum over its turns (RSPO).

    episodes: played by the start policy on training tasks; held_out: share of these tasks that only tell how well it
    predicts. architecture: what reads the episodes; null: a copy of the start policy. mlp_size: hidden units of the MLP
    on its last state of a turn. batch_episodes: of an optimizer step.
    """

    episodes: Annotated[int, Field(ge=2)] = 512
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    architecture: Annotated[TinyModel | PretrainedModel, Field(discriminator="kind")] | None = None
    mlp_size: Positive = 128
    steps: Positive = 200
    batch_episodes: Positive = 16
    learning_rate: Above0 = 1e-4
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    gradient_clip: Above0 = 1.0
    seed: Seed = 0


class VllmConfig(Settings):
    """vLLM's engine. gpu_memory: share of the GPU's memory that it takes; cpu_cache_gb: its cache on a CPU.

    tensor_parallel: GPUs that share a policy; data_parallel: replicas of it, each on as many GPUs. adapters: policies
    that were trained by adapters are sampled as those on the start policy's weights; false: as whole policies.
    eager: without CUDA graphs. top_logprobs: of vocabularies of more than 4,096 tokens, entropies are taken of so many
    of the most likely tokens, and of all others as one.
    """

    gpu_memory: Annotated[float, Field(gt=0, le=1)] = 0.5
    cpu_cache_gb: Positive = 2
    tensor_parallel: Positive = 1
    data_parallel: Positive = 1
    adapters: bool = True
    eager: bool = False
    top_logprobs: Positive = 20


class RolloutConfig(Settings):
    """Sampling: the engine, batch slots, limits, and what share of infrastructure faults fails the stage.

    scheduler: `deterministic`, all episodes in play sample together, so bits do not depend on timing; `continuous`,
    every episode goes on as soon as its own environment answered. workers: processes that host the environments of the
    second; step_seconds: a call of an environment that takes longer ends its episode by a timeout, which is a fault.
    server_seconds: a call that a server does not answer so soon is repeated once.
    """

    sampler: Literal["hf", "vllm"] = "hf"
    vllm: VllmConfig = VllmConfig()
    scheduler: Literal["deterministic", "continuous"] = "deterministic"
    workers: Positive = 4
    step_seconds: Above0 = 60.0
    server_seconds: Annotated[float, Field(ge=5)] = 1800.0
    tasks_per_iteration: Positive
    batch_slots: Positive = 64
    max_response_tokens: Positive = 16
    max_context_tokens: Positive = 1024
    retries: Annotated[int, Field(ge=0)] = 1
    max_fault_share: Share = 0.05

    @model_validator(mode="after")
    def _streams(self) -> RolloutConfig:
        if self.scheduler == "continuous" and self.sampler != "vllm":
            raise ValueError(
                f"scheduler: continuous needs a sampler that takes requests while it samples: set sampler to vllm, or "
                f"scheduler to deterministic (sampler is {self.sampler})"
            )
        return self


class LoraConfig(Settings):
    """Low-rank adapters (LoRA, arXiv 2106.09685): W + alpha / rank · B A, where A and B are trained and W is not.

    target_modules: names of the linear layers that get adapters; `all-linear`: all but the output layer.
    """

    rank: Positive = 16
    alpha: Positive = 32
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class TrainingConfig(Settings):
    """The algorithm-blind trainer; an iteration makes `epochs` × `minibatches` optimizer steps.

    packing: `rows` puts one sequence in a row, sorted by length, `packed` several under a mask, `tree` computes the
    prefixes that sequences share once; `auto` takes trees where they save at least 30 % of the tokens, else rows.
    checkpoints: keep `all` policies and trainer states, or the policies that validation needs and the last state.
    gradient_checkpointing: compute each transformer block again in the backward pass instead of keeping what is in it.
    cpu_offload: weights, gradients and optimizer wait in the computer's memory (under torchrun, with device cuda).
    lora: train adapters on the start policy instead of all weights; null: all. Saved policies are whole either way.
    """

    iterations: Positive
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    epochs: Positive = 1
    minibatches: Positive = 1
    micro_batch_tokens: Positive = 8192
    dtype: Literal["float32", "bfloat16"] = "float32"
    packing: Packing = "auto"
    checkpoints: Literal["all", "validated"] = "all"
    gradient_checkpointing: bool = False
    cpu_offload: bool = False
    lora: LoraConfig | None = None


class EvaluationConfig(Settings):
    """Every task of a panel exactly `samples_per_task` times; validation every `every` iterations."""

    samples_per_task: Positive = 1
    temperature: Annotated[float, Field(ge=0)] = 1.0
    every: Positive = 4
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    resamples: Positive = 10_000
    seed: Seed = 0


class TrackingConfig(Settings):
    """MLflow lineage; metrics.jsonl is written with or without it."""

    enabled: bool = True


class Experiment(Settings):
    """Everything a comparison is made of.

    processes: how many processes torchrun starts for a job that scores or trains; they share it, and each has a GPU.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    environment: EnvironmentConfig
    team: TeamConfig | None = None
    model: ModelConfig
    panels: PanelsConfig
    demos: DemosConfig
    sft: SftConfig
    dense_model: DenseModelConfig = DenseModelConfig()
    rollout: RolloutConfig
    training: TrainingConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    algorithms: dict[str, AlgorithmConfig]
    seeds: tuple[Seed, ...] = (0,)
    mode: Literal["staged", "online"] = "online"
    iterations_per_job: Positive = 1
    processes: Positive = 1
    threads: Positive = 1
    device: Literal["cpu", "cuda"] = "cpu"
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _methods(self) -> Experiment:
        if self.training.cpu_offload and self.device != "cuda":
            raise ValueError("training.cpu_offload frees a GPU's memory; without device: cuda there is none")
        if not self.algorithms or not self.seeds:
            raise ValueError("an experiment needs at least one algorithm and one seed")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} repeats a seed")
        for name, method in self.algorithms.items():
            schedule = method.schedule
            if self.training.lora and isinstance(schedule, RewardSwap) and schedule.optimizer == "fresh":
                raise ValueError(
                    f"algorithms.{name}.schedule.optimizer: fresh begins with new adapters, but training.lora goes on "
                    "from the start policy with those of the optimizer's state; use optimizer: copied"
                )
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or name == "sft":
                raise ValueError(
                    f"algorithms: {name!r} names directories and table rows; use letters, digits, - and _, "
                    "and not 'sft', which is the start policy"
                )
            if isinstance(self.algorithms[name].topology, Team) != (self.team is not None):
                raise ValueError(
                    f"algorithms.{name}.topology.kind: team goes with the section `team`, which says who plays, "
                    "and in an experiment with that section every method plays so"
                )
        if self.rollout.scheduler == "continuous" and self.team is not None and self.team.policies == "per_role":
            raise ValueError(
                "rollout.scheduler: continuous samples with one engine, and team.policies: per_role has one per role; "
                "set rollout.scheduler to deterministic, or team.policies to shared"
            )
        return self


_PLAY = tuple(f"environment.{key}" for key in ("rules", "max_turns", "max_invalid_turns", "prompt"))
_NO_SAMPLE = ("tasks_per_iteration", "workers", "server_seconds")
_SAMPLE = (
    *(f"rollout.{key}" for key in RolloutConfig.model_fields if key not in _NO_SAMPLE),
    *("model.context", "model.window_turns", "training.dtype", "threads", "device"),
)
_FORWARD = ("training.micro_batch_tokens", "training.packing", "training.dtype", "threads", "device")
_NO_EFFECT = ("iterations", "checkpoints", "gradient_checkpointing", "cpu_offload")
_UNREPORTED = ("name", "environment", "mode", "iterations_per_job", "processes", "tracking")
#: What each stage reads of the resolved experiment; a stage re-runs when this part changes, and only then.
#: Paths and how long a run goes on are not in it: they never change what a stage writes.
STAGE_READS: dict[str, tuple[str, ...]] = {
    "panel": ("environment.tasks", "panels"),
    "demos": ("team", "environment.rules", "environment.max_turns", "demos"),
    "sft": ("team", "environment.prompt", "model", "sft", "device"),
    "rollout": ("team", *_PLAY, *_SAMPLE, "rollout.tasks_per_iteration"),
    "dense_rollout": (*_PLAY, *_SAMPLE, "dense_model.episodes", "dense_model.seed"),
    "dense_model": ("environment.rules", "dense_model", *_FORWARD),
    "score": _FORWARD,
    "advantage": (),
    "update": (
        "team",
        *(f"training.{key}" for key in TrainingConfig.model_fields if key not in _NO_EFFECT),
        "threads",
        "device",
    ),
    "evaluate": (
        "team",
        *_PLAY,
        *_SAMPLE,
        "evaluation.samples_per_task",
        "evaluation.temperature",
        "evaluation.seed",
    ),
    "compare": ("evaluation.level", "evaluation.resamples", "evaluation.seed"),
    "report": (
        "name",
        "environment.tasks",
        *_PLAY[1:],
        *(key for key in Experiment.model_fields if key not in _UNREPORTED),
    ),
}
#: What each stage reads of the algorithm: its settings, and what `_derived` makes of them.
ALGORITHM_READS: dict[str, tuple[str, ...]] = {
    "rollout": ("topology", "schedule"),
    "score": ("score_columns", "critic_backbone"),
    "advantage": (
        "schedule",
        "reward",
        "selection",
        "advantage",
        "modifiers",
        "replay",
        "remembered_logprobs",
        "needs_entropy_scores",
    ),
    "update": ("loss", "critic", "old_logprobs"),
}


def stage_config(experiment: Experiment, stage: str, algorithm: str | None = None) -> Json:
    """Return the part of the resolved config that `stage` reads, as plain JSON values under dotted keys."""
    resolved = experiment.model_dump(mode="json")
    environment = experiment.environment
    resolved["environment"] |= {"tasks": environment.task_source(), "rules": environment.rules()}
    if experiment.team is not None:
        resolved["team"] = experiment.team.identity()
    if algorithm is not None:
        resolved["training"] = training_of(experiment, algorithm).model_dump(mode="json")
    part: Json = {key: _lookup(resolved, key) for key in STAGE_READS[stage]}
    if algorithm is not None:
        method = resolved["algorithms"][algorithm] | _derived(experiment.algorithms[algorithm])
        part |= {f"algorithm.{key}": _lookup(method, key) for key in ALGORITHM_READS.get(stage, ())}
    return part


def iteration_config(experiment: Experiment, algorithm: str) -> Json:
    """Return the part of the resolved config that the stages of an iteration read."""
    parts = (stage_config(experiment, stage, algorithm) for stage in ("rollout", "score", "advantage", "update"))
    return {key: value for part in parts for key, value in part.items()}


def training_of(experiment: Experiment, algorithm: str) -> TrainingConfig:
    """The trainer's settings as they hold for a method: updates between rounds have minibatches of their own."""
    schedule = experiment.algorithms[algorithm].schedule
    if not isinstance(schedule, PostStep):
        return experiment.training
    return experiment.training.model_copy(update={"epochs": 1, "minibatches": schedule.minibatches})


def _derived(method: AlgorithmConfig) -> Json:
    return {
        "score_columns": list(method.score_columns),
        "critic_backbone": method.critic.backbone if method.critic else None,
        "needs_entropy_scores": method.needs_entropy_scores,
        "remembered_logprobs": method.old_logprobs if method.replay else None,
    }


def validated_iterations(experiment: Experiment) -> list[int]:
    """Iterations after which the validation panel is played: every `evaluation.every`, and the last."""
    iterations = range(experiment.training.iterations)
    every = experiment.evaluation.every
    return [i for i in iterations if (i + 1) % every == 0 or i == iterations[-1]]


def config_hash(part: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a config part."""
    return hashlib.sha256(json.dumps(part, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _lookup(mapping: Json, dotted: str) -> Any:
    value: Any = mapping
    for key in dotted.split("."):
        value = value[key]
    return value
