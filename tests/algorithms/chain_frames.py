"""Rollouts and episodes of chains, built from a short description."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from agentbench_rl.config.algorithm import AlgorithmConfig

FAULTS = {"env_error", "timeout", "grader_error"}


@dataclass
class Chain:
    """One episode: group, one reward per turn, what else its turns have, and the name of its tree, if not its own."""

    group: str
    rewards: list[float]
    anchors: list[str] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    ending: str = "success"
    process: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    tool_calls: list[int] = field(default_factory=list)
    tree: str = ""
    greedy: bool = False


def frames(chains: list[Chain], prefix: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, episodes = [], []
    for number, chain in enumerate(chains):
        name, fault = f"{prefix}{number}", chain.ending in FAULTS
        for step, reward in enumerate(chain.rewards):
            lost = fault and step == len(chain.rewards) - 1
            rows.append(
                {
                    "turn_id": f"{name}/{step}",
                    "parent_id": f"{name}/{step - 1}" if step else None,
                    "task_id": f"{prefix}{chain.group}",
                    "group_id": f"{prefix}{chain.group}",
                    "tree_id": f"{prefix}tree-{chain.tree}" if chain.tree else name,
                    "branch": 0,
                    "step": step,
                    "state_key": f"{name}/{step}",
                    "anchor_key": chain.anchors[step] if chain.anchors else f"{name}/{step}",
                    "valid": chain.valid[step] if chain.valid else True,
                    "reward": None if lost else reward,
                    "process_reward": None if lost else chain.process[step] if chain.process else reward,
                    "response_tokens": chain.tokens[step] if chain.tokens else 1,
                    "tool_calls": chain.tool_calls[step] if chain.tool_calls else 0,
                    "chains_greedy": chain.greedy,
                }
            )
        episodes.append(
            {
                "episode_id": name,
                "leaf_turn_id": f"{name}/{len(chain.rewards) - 1}",
                "ending": chain.ending,
                "return": None if fault else sum(chain.rewards),
            }
        )
    rollouts = pd.DataFrame(rows).astype({"reward": float, "process_reward": float})
    return rollouts, pd.DataFrame(episodes).astype({"return": float})


def algorithm(
    estimator: str,
    penalty: float = 0.0,
    scale: float = 1.0,
    parts: dict[str, object] | None = None,
    **advantage: object,
) -> AlgorithmConfig:
    """A method with this estimator and its settings; `parts`: other parts of it, `reward` included."""
    others = dict(parts or {})
    reward = {"scale": scale, "invalid_action_penalty": penalty, **others.pop("reward", {})}  # type: ignore[dict-item]
    if estimator == "remax":
        others |= {"topology": {"greedy_baseline": True}}
    if estimator in ("sibling", "tree_weighted", "vine"):
        others |= {"topology": {"kind": "branch", "select": "every" if estimator == "vine" else "top_m"}}
    if estimator == "event_zscore":
        others |= {"topology": {"kind": "team"}}
    return AlgorithmConfig.model_validate(
        {"source": "test", "reward": reward, "advantage": {"estimator": estimator, **advantage}, **others}
    )
