"""What a method needs of the environment and the run, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from agentbench_rl.algorithms.dense_rewards import LEARNED
from agentbench_rl.config.advantage import Gae, Gdpo, Gigpo, Hgpo, MtGrpo, Reinforcepp
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.config.topology import Chains, Team
from agentbench_rl.types import AgentRLError


class Capability(StrEnum):
    """What an environment or a run may offer."""

    GROUPS = "groups larger than one"
    ANCHOR_KEYS = "anchor keys"
    DENSE_REWARDS = "dense rewards"
    TOKEN_ENTROPIES = "token entropies"
    TOOL_CALLS = "tool calls"
    SNAPSHOTS = "snapshots to fork from"


_TAUGHT = "schedule.source: dense"


def requirements(algorithm: AlgorithmConfig) -> dict[Capability, str]:
    """The capabilities that a method needs, each with the setting that asks for it."""
    advantage = algorithm.advantage
    estimator = f"advantage.estimator: {advantage.estimator}"
    needs: dict[Capability, str] = {}
    if not isinstance(advantage, Gae | Reinforcepp) and algorithm.topology.group_size > 1:
        needs[Capability.GROUPS] = estimator
    elif algorithm.resample is not None:
        needs[Capability.GROUPS] = "topology.resample"
    elif algorithm.selection.keep_groups < 1.0:
        needs[Capability.GROUPS] = "selection.keep_groups"
    if not isinstance(algorithm.topology, Chains | Team):
        needs[Capability.SNAPSHOTS] = f"topology.kind: {algorithm.topology.kind}"
    if isinstance(advantage, Gigpo | Hgpo):
        needs[Capability.ANCHOR_KEYS] = estimator
    if isinstance(advantage, MtGrpo) or (isinstance(advantage, Gdpo) and advantage.process_weight > 0):
        needs[Capability.DENSE_REWARDS] = estimator
    if algorithm.reward.view == "process":
        needs[Capability.DENSE_REWARDS] = "reward.view: process"
    taught = isinstance(algorithm.schedule, RewardSwap) and algorithm.schedule.source == "dense"
    if taught and not algorithm.needs_dense_model:
        needs[Capability.DENSE_REWARDS] = _TAUGHT
    if algorithm.needs_entropies:
        kinds = [modifier.kind for modifier in algorithm.modifiers]
        needs[Capability.TOKEN_ENTROPIES] = (
            f"modifiers: {', '.join(kinds)}" if kinds else f"loss.kind: {algorithm.loss.kind}"
        )
    if algorithm.reward.tool_call_bonus is not None:
        needs[Capability.TOOL_CALLS] = "reward.tool_call_bonus"
    return needs


def check_requirements(algorithm: AlgorithmConfig, offered: Collection[Capability]) -> None:
    """Raise AgentRLError naming the first capability that the method needs and that is not offered."""
    for capability, setting in requirements(algorithm).items():
        if capability not in offered:
            remedy = f" ({LEARNED})" if setting == _TAUGHT else ""
            raise AgentRLError(
                f"{setting} needs {capability}, which this experiment does not offer{remedy}; "
                "choose another method or another environment"
            )
