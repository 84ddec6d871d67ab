"""What is checked before anything runs: whether environment and sampler offer what the methods need."""

from __future__ import annotations

from agentbench_rl.algorithms.requirements import Capability, check_requirements
from agentbench_rl.config import Experiment
from agentbench_rl.types import AgentRLError

#: What each environment family and sampler offers.
_OFFERS = {
    "alfworld": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARD},
    "hf": {Capability.TOKEN_ENTROPIES},
}


def check_experiment(experiment: Experiment) -> None:
    """Raise AgentRLError naming the method and the first capability that it needs and does not get."""
    offered = _OFFERS[experiment.environment.name] | _OFFERS[experiment.rollout.sampler]
    for name, method in experiment.algorithms.items():
        try:
            check_requirements(method, {capability: capability in offered for capability in Capability})
        except AgentRLError as error:
            raise AgentRLError(f"algorithm {name}: {error}") from None
