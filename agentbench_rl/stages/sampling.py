"""What the stages that sample have in common: the sampler, the episodes, the three files they write."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.config import Experiment, Json
from agentbench_rl.envs import open_suite
from agentbench_rl.envs.base import Environment
from agentbench_rl.envs.remote import EnvironmentPool
from agentbench_rl.policies.base import Sampler, StreamingSampler
from agentbench_rl.policies.entropies import LOWER_BOUNDS
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import load_tokenizer, policy_path
from agentbench_rl.policies.remote import RemoteSampler
from agentbench_rl.policies.team import TeamSampler
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.policies.vllm import VLLMSampler
from agentbench_rl.rollout import continuous
from agentbench_rl.rollout.chains import Player, Rollouts, collect, ending_counts
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings
from agentbench_rl.rollout.workflows import open_workflow
from agentbench_rl.stages.files import write_rows
from agentbench_rl.stages.manifest import StageReport
from agentbench_rl.stages.team import own_policies
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.types import (
    AGENT,
    GREEDY,
    SINGLE,
    STEP_REWARD,
    AgentRLError,
    Progress,
    episode_schema,
    rollout_schema,
    topology_columns,
)

#: Environment variable that names the file of a server to sample with; no result depends on it.
SERVER = "AGENTRL_SERVER"


@dataclass(frozen=True)
class PolicyRef:
    """A policy directory with the name and version that its rows carry."""

    path: Path
    name: str
    version: int


@dataclass(frozen=True)
class Loaded:
    """A loaded policy: what plays episodes with it, and the settings, codec and environments that it plays with."""

    play: Player
    settings: PlaySettings
    codec: ChatCodec
    make_environment: Callable[[], Environment]


@contextmanager
def environments(experiment: Experiment, games: Path, splits: Sequence[str]) -> Iterator[Callable[[], Environment]]:
    """Open the games of some splits, and give what makes environments: here, or in processes of their own."""
    opener = partial(open_suite, experiment.environment, games, sorted(splits))
    limits = experiment.rollout
    if limits.scheduler == "deterministic":
        yield opener().make
        return
    with EnvironmentPool(opener, workers=limits.workers, step_seconds=limits.step_seconds) as pool:
        yield pool.make


@contextmanager
def loaded(
    experiment: Experiment, policy: PolicyRef, make_environment: Callable[[], Environment], temperature: float
) -> Iterator[Loaded]:
    """Load a policy, to play in these environments under the experiment's limits, as its team where it has one."""
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
        team=experiment.team,
        workflow=open_workflow(experiment.team, experiment.environment) if experiment.team else None,
    )
    names = own_policies(experiment)
    if names and SERVER in os.environ:
        raise AgentRLError(f"{SERVER} names a server, which has one policy, and this team has several; unset it")
    sampler = TeamSampler(names, partial(_sampler, experiment)) if names else _sampler(experiment, SINGLE)
    try:
        sampler.load(policy.path, policy.version)
        # All policies of a comparison share a tokenizer.
        codec = ChatCodec(load_tokenizer(policy_path(policy.path, names[0]) if names else policy.path))
        endings = Counter[str]()

        def play_episodes(specs: Sequence[EpisodeSpec], progress: Progress) -> Rollouts:
            rollouts = _scheduler(sampler, limits.scheduler)(
                specs,
                make_environment=make_environment,
                codec=codec,
                settings=settings,
                slots=limits.batch_slots,
                retries=limits.retries,
                max_fault_share=limits.max_fault_share,
                progress=progress,
                earlier=endings,
            )
            if sampler.entropies_are_lower_bounds:
                rollouts.metrics[LOWER_BOUNDS] = 1.0
            endings.update(ending_counts(rollouts, len(specs)))
            return rollouts

        yield Loaded(play_episodes, settings, codec, make_environment)
    finally:
        sampler.close()


def _scheduler(sampler: Sampler, name: str) -> Callable[..., Rollouts]:
    """What plays episodes with a sampler."""
    if name == "deterministic":
        return partial(collect, sampler=sampler)
    assert isinstance(sampler, StreamingSampler)  # RolloutConfig allows no other
    return partial(continuous.collect, sampler=sampler)


def _sampler(experiment: Experiment, name: str) -> Sampler:
    """What samples with the policy of a name: here, or the server that the environment names."""
    if file := os.environ.get(SERVER):
        return RemoteSampler(Path(file), sampling_settings(experiment), experiment.rollout.server_seconds)
    return local_sampler(experiment, name)


def sampling_settings(experiment: Experiment) -> Json:
    """What a server samples with, and its clients must agree on."""
    limits = experiment.rollout.model_dump(include={"sampler", "vllm", "batch_slots", "max_context_tokens"})
    return limits | {"dtype": experiment.training.dtype, "device": experiment.device, "threads": experiment.threads}


def local_sampler(experiment: Experiment, name: str = "policy") -> Sampler:
    """What samples in this process with the policy of a name."""
    limits = experiment.rollout
    slots, context = limits.batch_slots, limits.max_context_tokens
    dtype, device = experiment.training.dtype, experiment.device
    if limits.sampler == "hf":
        return HFSampler(slots=slots, max_context=context, dtype=dtype, device=device)
    lora = experiment.training.lora
    return VLLMSampler(
        slots=slots,
        max_context=context,
        engine=limits.vllm,
        dtype=dtype,
        device=device,
        name=name,
        lora_rank=lora.rank if lora else None,
    )


@contextmanager
def player(
    experiment: Experiment, policy: PolicyRef, games: Path, splits: Sequence[str], temperature: float
) -> Iterator[Player]:
    """Load a policy once, and give what plays episodes with it under the experiment's limits."""
    with (
        environments(experiment, games, splits) as make_environment,
        loaded(experiment, policy, make_environment, temperature) as ready,
    ):
        yield ready.play


def play(
    experiment: Experiment,
    policy: PolicyRef,
    games: Path,
    specs: Sequence[EpisodeSpec],
    temperature: float,
    progress: Progress,
) -> Rollouts:
    """Play episodes with a policy under the experiment's limits."""
    splits = {spec.task.split for spec in specs}
    with player(experiment, policy, games, sorted(splits), temperature) as play_episodes:
        return play_episodes(specs, progress)


def write_rollouts(rollouts: Rollouts, directory: Path) -> StageReport:
    """Write `rollouts.parquet`, `episodes.parquet` and `timings.parquet`; return counts, ledger and metrics.

    Endings, ledger, success, return and length are those of all episodes played, kept or not; greedy baselines
    enter no metric.
    """
    write_rows(directory / "rollouts.parquet", rollouts.turns, _turn_schema(rollouts))
    write_rows(directory / "episodes.parquet", rollouts.episodes, episode_schema())
    pq.write_table(pa.Table.from_pylist(rollouts.timings), directory / "timings.parquet")
    played = [*rollouts.episodes, *rollouts.discarded]
    scored = [episode for episode in played if episode["success"] is not None and not episode.get(GREEDY)]
    turns = [turn for turn in rollouts.turns if not turn.get(GREEDY)]
    ledger = {"episodes": len(played), "model_calls": rollouts.model_calls, **rollouts.cost}
    metrics = {
        "success": _mean([float(episode["success"]) for episode in scored]),
        "return": _mean([episode["return"] for episode in scored]),
        "episode_length": _mean([float(episode["length"]) for episode in scored]),
        "valid_turns": _mean([float(turn["valid"]) for turn in turns]),
        "boundary_entropy": _mean([e for turn in turns if (e := turn["boundary_entropy"]) is not None]),
        "distinct_states": float(len({turn[key] for turn in turns for key in ("state_key", "next_state_key")})),
    }
    if any(AGENT in turn for turn in turns):
        metrics["set_size"] = len(turns) / len({turn["event_id"] for turn in turns})
    metrics |= rollouts.metrics
    counts = {**dict(sorted(rollouts.endings.items())), "retried": rollouts.retried}
    return StageReport(counts=counts, ledger={key: float(value) for key, value in ledger.items()}, metrics=metrics)


def _turn_schema(rollouts: Rollouts) -> pa.Schema:
    """The contract's columns, and the topology's own where it has any."""
    schema = rollout_schema()
    for name, kind in topology_columns().items():
        if rollouts.turns and name in rollouts.turns[0]:
            schema = schema.append(pa.field(name, kind, nullable=name == STEP_REWARD))
    return schema


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
