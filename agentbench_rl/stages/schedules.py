"""Schedules whose iterations are run as a whole, each by the module of its name."""

from __future__ import annotations

from agentbench_rl.config import Experiment, Json
from agentbench_rl.config.schedule import OneStepOff, OnPolicy, PostStep, RewardSwap
from agentbench_rl.stages import post_step, reward_swap
from agentbench_rl.stages.layout import Layout
from agentbench_rl.types import AgentRLError, Progress, silent


def iterate(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> dict[str, Json]:
    """Run one iteration; returns the manifests of its stages by name.

    Raises AgentRLError for a method whose iterations are no more than their stages.
    """
    run = (experiment, layout, algorithm, seed, iteration, progress)
    schedule = experiment.algorithms[algorithm].schedule
    match schedule:
        case PostStep():
            return post_step.iterate(*run)
        case RewardSwap():
            return reward_swap.iterate(*run)
        case OnPolicy() | OneStepOff():
            raise AgentRLError(
                f"algorithm {algorithm}: its schedule is {schedule.kind}, and an iteration is nothing but its stages; "
                "run them one by one (agentrl rollout, score, advantage, update) or agentrl train"
            )
