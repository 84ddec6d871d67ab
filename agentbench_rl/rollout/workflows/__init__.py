"""Workflows of teams: which roles act in which order, and what they may say."""

from __future__ import annotations

from typing import Any

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.rollout.workflows.base import Workflow
from agentbench_rl.rollout.workflows.mathematics import Mathematics
from agentbench_rl.rollout.workflows.propose_act import ProposeAct
from agentbench_rl.rollout.workflows.search import Search
from agentbench_rl.types import SINGLE, AgentRLError


def open_workflow(team: TeamConfig, environment: EnvironmentConfig) -> Workflow[Any]:
    """The workflow of a team in an environment; raises AgentRLError where they do not fit or a role is unknown."""
    match team.workflow:
        case "mathematics":
            workflow: Workflow[Any] = Mathematics(team, environment)
        case "search":
            workflow = Search(team, environment)
        case "propose_act":
            workflow = ProposeAct(team, environment)
    instructions_of(team, workflow)
    return workflow


def instructions_of(team: TeamConfig, workflow: Workflow[Any]) -> dict[str, str]:
    """System prompt of every role: the workflow's own, or the one in its place; AgentRLError for an unknown role."""
    own = workflow.instructions
    unknown = sorted(set(team.instructions) - set(own))
    if unknown:
        raise AgentRLError(f"team.instructions: unknown roles {', '.join(unknown)}; this team has {', '.join(own)}")
    return own | team.instructions


def policy_of(team: TeamConfig, role: str) -> str:
    """Name of the policy that a role acts with."""
    return SINGLE if team.policies == "shared" else role


def places(slots: int, workflow: Workflow[Any]) -> int:
    """How many episodes are in play at once, in a batch of `slots` requests; raises AgentRLError where not one is."""
    if slots < workflow.largest_set:
        raise AgentRLError(
            f"rollout.batch_slots is {slots}, and an event of this team has up to {workflow.largest_set} members, "
            "which are sampled together; set rollout.batch_slots to at least that"
        )
    return slots // workflow.largest_set
