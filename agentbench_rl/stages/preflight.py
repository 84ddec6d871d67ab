"""What is checked before anything runs: panels, and whether the environment offers what the methods need."""

from __future__ import annotations

from agentbench_rl.algorithms.requirements import Capability, check_requirements
from agentbench_rl.algorithms.reward_swap import loop_counts
from agentbench_rl.config import Experiment
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.rollout.workflows import open_workflow, places
from agentbench_rl.stages.panel import PANELS
from agentbench_rl.types import AgentRLError

#: What each environment family offers; token entropies come from the trainer's own forward pass.
_OFFERS = {
    "alfworld": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS},
    "webshop": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS},
    "math": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS, Capability.TOOL_CALLS},
    "search": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS, Capability.TOOL_CALLS},
    "gem": {Capability.GROUPS, Capability.ANCHOR_KEYS},
    "textworld": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS},
    "custom": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS, Capability.TOOL_CALLS},
    "code": {Capability.GROUPS, Capability.ANCHOR_KEYS, Capability.DENSE_REWARDS, Capability.TOOL_CALLS},
}


def check_experiment(experiment: Experiment) -> None:
    """Raise AgentRLError for a panel without an end, or a method that needs what it does not get, with both names."""
    environment = experiment.environment
    for name in PANELS:
        if getattr(experiment.panels, name).size == "all" and environment.data is None:
            raise AgentRLError(
                f"panels.{name}.size: all tasks of a split are asked for, and environment.data is not set: generated "
                f"tasks have no end. Set environment.data=DIR (agentrl env fetch {environment.name} DIR) or give a size"
            )
    if experiment.team is not None:
        places(experiment.rollout.batch_slots, open_workflow(experiment.team, environment))
    offered = _OFFERS[environment.name] | {Capability.TOKEN_ENTROPIES}
    if environment.name == "alfworld" and environment.engine == "textworld":
        offered -= {Capability.DENSE_REWARDS}
    if getattr(environment, "forkable", True):
        offered |= {Capability.SNAPSHOTS}
    for name, method in experiment.algorithms.items():
        try:
            check_requirements(method, offered)
            if isinstance(method.schedule, RewardSwap):
                _check_loop(experiment, method.schedule, method.topology.group_size)
        except AgentRLError as error:
            raise AgentRLError(f"algorithm {name}: {error}") from None


def notes(experiment: Experiment) -> list[str]:
    """What is allowed, and hardly meant."""
    told = []
    for name, method in experiment.algorithms.items():
        if isinstance(method.schedule, RewardSwap) and method.schedule.share == 0:
            counts = loop_counts(method.schedule, experiment.rollout.tasks_per_iteration, method.topology.group_size)
            told.append(
                f"algorithm {name}: schedule.share is 0, so nothing that is collected is ever trained on: it trains as "
                f"its host does, and a loop plays {counts.episodes} episodes for the host's {counts.baseline_episodes}"
            )
    return told


def _check_loop(experiment: Experiment, schedule: RewardSwap, group_size: int) -> None:
    counts = loop_counts(schedule, experiment.rollout.tasks_per_iteration, group_size)
    size = experiment.panels.train.size
    if isinstance(size, int) and counts.buffer_tasks > size:
        raise AgentRLError(
            f"schedule: a loop collects episodes of {counts.buffer_tasks} different tasks, the train panel has {size}: "
            "raise panels.train.size, or set schedule.buffer_tasks to at most that"
        )
