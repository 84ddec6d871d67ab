"""What is checked before anything runs: panels, and whether the environment offers what the methods need."""

from __future__ import annotations

from agentbench_rl.algorithms.requirements import Capability, check_requirements
from agentbench_rl.config import Experiment
from agentbench_rl.stages.panel import PANELS
from agentbench_rl.types import AgentRLError

#: What each engine of an environment family offers; token entropies come from the trainer's own forward pass.
_OFFERS = {
    ("alfworld", "native"): {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS},
    ("alfworld", "textworld"): {Capability.GROUPS, Capability.ANCHOR_KEYS},
}


def check_experiment(experiment: Experiment) -> None:
    """Raise AgentRLError for a panel without an end, or a method that needs what it does not get, with both names."""
    for name in PANELS:
        if getattr(experiment.panels, name).size == "all" and experiment.environment.data is None:
            raise AgentRLError(
                f"panels.{name}.size: all tasks of a split are asked for, and environment.data is not set: generated "
                "games have no end. Set environment.data=DIR (agentrl env fetch alfworld DIR) or give a size"
            )
    environment = experiment.environment
    offered = _OFFERS[environment.name, environment.engine] | {Capability.TOKEN_ENTROPIES}
    for name, method in experiment.algorithms.items():
        try:
            check_requirements(method, offered)
        except AgentRLError as error:
            raise AgentRLError(f"algorithm {name}: {error}") from None
