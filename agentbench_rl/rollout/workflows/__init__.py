"""Workflows of teams: which roles act in which order, and what they may say."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.rollout.workflows.base import Workflow
from agentbench_rl.rollout.workflows.mathematics import Mathematics
from agentbench_rl.rollout.workflows.propose_act import ProposeAct
from agentbench_rl.rollout.workflows.search import Search
from agentbench_rl.types import SINGLE, AgentRLError

_METHODS = ("instructions", "largest_set", "start", "next_set", "moves", "commit", "demonstrate")


def open_workflow(team: TeamConfig, environment: EnvironmentConfig) -> Workflow[Any]:
    """The workflow of a team in an environment.

    Raises AgentRLError where they do not fit, a role is unknown, or a user's workflow cannot be one.
    """
    match team.workflow:
        case "mathematics":
            workflow: Workflow[Any] = Mathematics(team, environment)
        case "search":
            workflow = Search(team, environment)
        case "propose_act":
            workflow = ProposeAct(team, environment)
        case _:
            workflow = _own(team, environment)
    instructions_of(team, workflow)
    return workflow


def _own(team: TeamConfig, environment: EnvironmentConfig) -> Workflow[Any]:
    """A user's workflow: its class is made with the settings of team and environment, as the shipped ones are."""
    module, _, name = team.workflow.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AgentRLError(
            f"team.workflow: {team.workflow} cannot be loaded: {error}; install the module, or name its directory in "
            "PYTHONPATH"
        ) from error
    try:
        made = kind(team, environment)
    except TypeError as error:
        raise AgentRLError(
            f"team.workflow: {team.workflow} is not made with the settings of team and environment: {error}"
        ) from error
    missing = [method for method in _METHODS if not hasattr(made, method)]
    if missing:
        raise AgentRLError(f"team.workflow: a {type(made).__name__} is no workflow, it has no {', '.join(missing)}")
    _check_roles(team.workflow, made.instructions)
    if not isinstance(made.largest_set, int) or made.largest_set < 1:
        raise AgentRLError(f"team.workflow: {team.workflow} has the largest_set {made.largest_set!r}, not 1 or more")
    workflow: Workflow[Any] = made
    return workflow


def _check_roles(workflow: str, instructions: object) -> None:
    """Roles name policies, which have directories; the name of the policy that all roles may share is taken."""
    if not isinstance(instructions, dict) or not instructions:
        raise AgentRLError(f"team.workflow: the instructions of {workflow} are a dict of system prompts by role")
    for role, text in instructions.items():
        if not isinstance(text, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", str(role)) or role == SINGLE:
            raise AgentRLError(
                f"team.workflow: {workflow} has the role {role!r} with the instructions {text!r}; a role is of "
                f"letters, digits, - and _, and not {SINGLE!r}, and its instructions are text"
            )


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
