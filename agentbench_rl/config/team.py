"""Settings of a team: which roles solve a task together, and whose weights they act with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.settings import Positive, Settings
from agentbench_rl.config.sources import CodeName, source_hash


class TeamConfig(Settings):
    """A team that plays every episode of an experiment, in place of one agent.

    workflow: `mathematics`, solvers whose answers an aggregator weighs; `search`, searchers whose finds an answerer
    reads; `propose_act`, proposals of which an actor makes one action; `module:Class`, a user's. orchestration:
    `fixed`, the same sets every time; `mixed`, a verifier decides whether the set acts (or one revises) once more;
    `routed`, a trained router chooses who acts next, or stops. members: agents of the set that acts at once, or that
    the router chooses among. rounds: how often the set may act, at most (of propose_act: in every environment step).
    history: of propose_act, how many of the last actions its prompts show. policies: all roles share one policy, or
    every role has its own weights, optimizer and version. instructions: system prompts by role, in place of the
    workflow's own.
    """

    workflow: Literal["mathematics", "search", "propose_act"] | CodeName
    orchestration: Literal["fixed", "mixed", "routed"] = "fixed"
    members: Positive = 4
    rounds: Positive = 2
    history: Positive = 8
    policies: Literal["shared", "per_role"] = "shared"
    instructions: dict[str, str] = Field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """The settings, and of a user's workflow the hash of its source file: results of other code are out of date."""
        module, own, _ = self.workflow.partition(":")
        return self.model_dump(mode="json") | ({"code": source_hash(module)} if own else {})

    @model_validator(mode="after")
    def _something_is_verified(self) -> TeamConfig:
        if self.orchestration == "mixed" and self.rounds < 2:
            raise ValueError(
                "orchestration: in mixed a verifier decides on a further round, and rounds allows only one; set rounds "
                "to at least 2, or orchestration to fixed"
            )
        return self
