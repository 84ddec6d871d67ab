"""Rollouts and episodes of trees, built from a short description."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from agentbench_rl.config.algorithm import AlgorithmConfig


@dataclass
class Line:
    """Turns of a backbone or of a fresh continuation: one reward per turn, and what else they have."""

    rewards: Sequence[float]
    actions: Sequence[int] = ()
    valid: Sequence[bool] = ()
    ending: str = "success"


@dataclass
class Tree:
    """A backbone and, by the step that they start at, its fresh continuations; `planned` siblings, if not all lived."""

    backbone: Line
    fresh: dict[int, list[Line]] = field(default_factory=dict)
    planned: dict[int, int] = field(default_factory=dict)
    group: str = "g"


def tree(backbone: Sequence[float], fresh: dict[int, list[Sequence[float]]] | None = None, group: str = "g") -> Tree:
    """A tree of rewards alone."""
    lines = {step: [Line(rewards) for rewards in siblings] for step, siblings in (fresh or {}).items()}
    return Tree(Line(backbone), lines, group=group)


def played_tree(
    backbone: Sequence[int],
    fresh: dict[int, list[Sequence[int]]],
    pays: Callable[[Sequence[int]], float],
    group: str,
) -> Tree:
    """The tree of these actions; a path pays at its end."""

    def line(start: int, actions: Sequence[int]) -> Line:
        return Line([0.0] * (len(actions) - 1) + [pays([*backbone[:start], *actions])], actions)

    siblings = {step: [line(step, actions) for actions in lines] for step, lines in fresh.items()}
    return Tree(line(0, backbone), siblings, group=group)


def tree_frames(trees: Sequence[Tree], prefix: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two frames; turn ids are `{tree}.b{branch}.{step}`."""
    rows: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    for number, item in enumerate(trees):
        name, branch = f"{prefix}t{number}", 0
        planned = {step: len(lines) + 1 for step, lines in item.fresh.items()} | item.planned
        _add(rows, episodes, item, name, 0, 0, item.backbone, planned)
        for step, lines in item.fresh.items():
            for line in lines:
                branch += 1
                _add(rows, episodes, item, name, branch, step, line, {})
    frame = pd.DataFrame(rows).astype({"reward": float})
    return frame, pd.DataFrame(episodes).astype({"return": float})


def _add(
    rows: list[dict[str, Any]],
    episodes: list[dict[str, Any]],
    item: Tree,
    name: str,
    branch: int,
    start: int,
    line: Line,
    planned: dict[int, int],
) -> None:
    fault = line.ending == "env_error"
    before = sum(item.backbone.rewards[:start])
    for index, reward in enumerate(line.rewards):
        step = start + index
        parent = f"{name}.b{branch if index else 0}.{step - 1}"
        rows.append(
            {
                "turn_id": f"{name}.b{branch}.{step}",
                "parent_id": parent if step else None,
                "task_id": item.group,
                "group_id": item.group,
                "tree_id": name,
                "branch": branch,
                "step": step,
                "action": str(line.actions[index]) if line.actions else "",
                "valid": line.valid[index] if line.valid else True,
                "reward": None if fault and index == len(line.rewards) - 1 else reward,
                "branch_siblings": planned.get(step, 0),
            }
        )
    episodes.append(
        {
            "episode_id": f"{name}.b{branch}",
            "leaf_turn_id": f"{name}.b{branch}.{start + len(line.rewards) - 1}",
            "ending": line.ending,
            "return": None if fault else before + sum(line.rewards),
        }
    )


def tree_method(
    estimator: str, trees: int = 2, reward: dict[str, object] | None = None, **advantage: object
) -> AlgorithmConfig:
    """A method on the `branch` topology with this estimator and its settings."""
    topology = {"kind": "branch", "trees": trees} | ({"select": "every"} if estimator == "vine" else {})
    settings = {"estimator": estimator, **advantage}
    return AlgorithmConfig.model_validate(
        {"source": "test", "topology": topology, "reward": reward or {}, "advantage": settings}
    )
