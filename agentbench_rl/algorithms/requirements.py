"""What a method needs of the environment, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError


class Capability(StrEnum):
    """What an environment may offer."""

    GROUPS = "groups larger than one"
    ANCHOR_KEYS = "anchor keys"


_NEEDS: dict[str, tuple[Capability, ...]] = {
    "group_zscore": (Capability.GROUPS,),
    "group_mean": (Capability.GROUPS,),
    "leave_one_out": (Capability.GROUPS,),
    "gigpo": (Capability.GROUPS, Capability.ANCHOR_KEYS),
}


def check_requirements(algorithm: AlgorithmConfig, offers: Mapping[Capability, bool]) -> None:
    """Raise AgentRLError naming the first capability that the method needs and `offers` lacks (absent = lacking)."""
    estimator = algorithm.advantage.estimator
    alone = algorithm.topology.group_size == 1
    for capability in _NEEDS[estimator]:
        if not offers.get(capability, False) and not (alone and capability is Capability.GROUPS):
            raise AgentRLError(
                f"advantage.estimator: {estimator} needs {capability}, which this environment does not offer; "
                "choose another method or another environment"
            )
