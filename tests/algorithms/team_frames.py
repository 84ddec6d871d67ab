"""Rollouts and episodes of teams, built from a short description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from agentbench_rl.config.algorithm import AlgorithmConfig


@dataclass
class Act:
    """One event: its type, whether each of its members was well-formed, and its round; agents are named by place."""

    kind: str
    valid: Sequence[bool]
    round: int = 0
    agents: Sequence[str] = ()


@dataclass
class Play:
    """One episode of a team, paid at its end."""

    paid: float
    acts: list[Act] = field(default_factory=lambda: [Act("propose", [True, True]), Act("aggregate", [True])])
    group: str = "g"
    ending: str = "success"


def act(kind: str, members: int = 1, invalid: int = 0, round: int = 0) -> Act:
    """An event of which the last `invalid` members are malformed."""
    return Act(kind, [place < members - invalid for place in range(members)], round)


def team_frames(plays: Sequence[Play], prefix: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two frames; turn ids are `{episode}.{step}.{member}`, event ids `{episode}.{step}`."""
    rows: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    for number, play in enumerate(plays):
        name, last = f"{prefix}{number}", len(play.acts) - 1
        for step, event in enumerate(play.acts):
            for member, valid in enumerate(event.valid):
                rows.append(
                    {
                        "turn_id": f"{name}.{step}.{member}",
                        "parent_id": f"{name}.{step - 1}.0" if step else None,
                        "task_id": f"{prefix}{play.group}",
                        "group_id": f"{prefix}{play.group}",
                        "tree_id": name,
                        "branch": 0,
                        "step": step,
                        "event_id": f"{name}.{step}",
                        "event_type": event.kind,
                        "event_size": len(event.valid),
                        "member": member,
                        "policy": "policy",
                        "policy_version": 3,
                        "state_key": f"{name}.s{step}",
                        "valid": valid,
                        "reward": play.paid if step == last else 0.0,
                        "team_agent": event.agents[member] if event.agents else f"{event.kind}-{member}",
                        "team_round": event.round,
                    }
                )
        fault = play.ending == "env_error"
        episodes.append(
            {
                "episode_id": name,
                "leaf_turn_id": f"{name}.{last}.0",
                "tree_id": name,
                "ending": play.ending,
                "return": None if fault else play.paid,
            }
        )
    return pd.DataFrame(rows), pd.DataFrame(episodes).astype({"return": float})


def team_method(
    estimator: str = "event_zscore", penalty: float = 0.0, scale: float = 1.0, **advantage: object
) -> AlgorithmConfig:
    """A method of teams with this estimator and its settings."""
    return AlgorithmConfig.model_validate(
        {
            "source": "test",
            "topology": {"kind": "team"},
            "reward": {"invalid_action_penalty": penalty, "scale": scale},
            "advantage": {"estimator": estimator, **advantage},
        }
    )
