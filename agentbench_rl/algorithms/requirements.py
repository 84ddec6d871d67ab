"""What a method needs of environment and sampler, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from agentbench_rl.config import AlgorithmConfig
from agentbench_rl.types import AgentRLError


class Capability(StrEnum):
    """What an environment or a sampler may offer."""

    GROUPS = "groups larger than one"
    ANCHOR_KEYS = "anchor keys"
    DENSE_REWARD = "dense reward"
    TOKEN_ENTROPIES = "token entropies"


_NEEDS: dict[tuple[str, str], tuple[Capability, ...]] = {
    ("advantage.estimator", "group_zscore"): (Capability.GROUPS,),
    ("advantage.estimator", "group_mean"): (Capability.GROUPS,),
    ("advantage.estimator", "leave_one_out"): (Capability.GROUPS,),
    ("advantage.estimator", "gigpo"): (Capability.GROUPS, Capability.ANCHOR_KEYS),
    ("reward.view", "process"): (Capability.DENSE_REWARD,),
    ("topology.kind", "branch"): (Capability.TOKEN_ENTROPIES,),
}


def check_requirements(algorithm: AlgorithmConfig, offers: Mapping[Capability, bool]) -> None:
    """Raise AgentRLError naming the first capability that the method needs and `offers` lacks (absent = lacking)."""
    chosen = {
        "advantage.estimator": algorithm.advantage.estimator,
        "reward.view": algorithm.reward.view,
        "topology.kind": algorithm.topology.kind,
    }
    alone = algorithm.topology.group_size == 1
    if alone and algorithm.advantage.singleton != "raw":
        raise AgentRLError(
            f"advantage.estimator: {algorithm.advantage.estimator} needs {Capability.GROUPS}; "
            "raise topology.group_size or set advantage.singleton: raw"
        )
    for (key, value), capabilities in _NEEDS.items():
        for capability in capabilities if chosen[key] == value else ():
            if not offers.get(capability, False) and not (alone and capability is Capability.GROUPS):
                raise AgentRLError(
                    f"{key}: {value} needs {capability}, which this environment or sampler does not offer; "
                    "choose another method or another environment"
                )
