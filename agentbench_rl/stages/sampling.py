"""What the stages that sample have in common: the sampler, the episodes, the three files they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.config import Experiment
from agentbench_rl.envs import open_suite
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.chains import Rollouts, collect
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings
from agentbench_rl.stages.files import write_rows
from agentbench_rl.stages.manifest import StageReport
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.types import Progress, episode_schema, rollout_schema


@dataclass(frozen=True)
class PolicyRef:
    """A policy directory with the name and version that its rows carry."""

    path: Path
    name: str
    version: int


def play(
    experiment: Experiment,
    policy: PolicyRef,
    games: Path,
    specs: Sequence[EpisodeSpec],
    temperature: float,
    progress: Progress,
) -> Rollouts:
    """Play episodes with a policy under the experiment's limits."""
    use_threads(experiment.threads)
    limits = experiment.rollout
    settings = PlaySettings(
        environment=experiment.environment,
        model=experiment.model,
        max_response_tokens=limits.max_response_tokens,
        max_context_tokens=limits.max_context_tokens,
        temperature=temperature,
        policy=policy.name,
        policy_version=policy.version,
    )
    splits = sorted({spec.task.split for spec in specs})
    suite = open_suite(experiment.environment, games, splits)
    sampler = HFSampler(
        slots=limits.batch_slots,
        max_context=limits.max_context_tokens,
        dtype=experiment.training.dtype,
        device=experiment.device,
    )
    try:
        sampler.load(policy.path, policy.version)
        return collect(
            specs,
            sampler,
            suite.make,
            ChatCodec(load_tokenizer(policy.path)),
            settings,
            slots=limits.batch_slots,
            retries=limits.retries,
            max_fault_share=limits.max_fault_share,
            progress=progress,
        )
    finally:
        sampler.close()


def write_rollouts(rollouts: Rollouts, directory: Path) -> StageReport:
    """Write `rollouts.parquet`, `episodes.parquet` and `timings.parquet`; return counts, ledger and metrics."""
    write_rows(directory / "rollouts.parquet", rollouts.turns, rollout_schema())
    write_rows(directory / "episodes.parquet", rollouts.episodes, episode_schema())
    pq.write_table(pa.Table.from_pylist(rollouts.timings), directory / "timings.parquet")
    scored = [episode for episode in rollouts.episodes if episode["success"] is not None]
    ledger = {
        "episodes": len(rollouts.episodes),
        "model_calls": rollouts.model_calls,
        **rollouts.cost,
    }
    entropies = [turn["boundary_entropy"] for turn in rollouts.turns if turn["boundary_entropy"] is not None]
    metrics = {
        "success": _mean([float(episode["success"]) for episode in scored]),
        "return": _mean([episode["return"] for episode in scored]),
        "episode_length": _mean([float(episode["length"]) for episode in scored]),
        "valid_turns": _mean([float(turn["valid"]) for turn in rollouts.turns]),
        "boundary_entropy": _mean(entropies),
        "distinct_states": float(len({turn["state_key"] for turn in rollouts.turns})),
    }
    counts = {**dict(sorted(rollouts.endings.items())), "retried": rollouts.retried}
    return StageReport(counts=counts, ledger={key: float(value) for key, value in ledger.items()}, metrics=metrics)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
