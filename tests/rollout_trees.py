"""Rows of rollout trees that are made up: a tree of branches, and one of best-first expansion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

Frames = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
_ROW = {"task_id": "valid/pick <b>pen</b>", "task_type": "pick", "tree_id": "g.t0", "member": 0, "valid": True}


def branched() -> Frames:
    """Rollouts, episodes and advantages of a backbone of 6 turns that was forked before its third turn: 4 leaves."""
    turns: list[dict[str, Any]] = []
    episodes = []
    credit = []
    for branch, (ending, last) in enumerate([("failure", 5), ("success", 4), ("success", 3), ("truncated_turns", 7)]):
        first = 0 if branch == 0 else 2
        for step in range(first, last + 1):
            fork = step == first and branch > 0
            owner = 0 if fork else branch
            parent = f"g.t0.b{owner}.{step - 1}" if step else None
            turns.append(
                _ROW
                | {"turn_id": f"g.t0.b{branch}.{step}", "parent_id": parent, "branch": branch, "step": step}
                | {"action": f"go to desk {step} & look", "observation": f"You arrive at <desk {step}>."}
                | {"boundary_entropy": 1.25 if step == 2 else 0.1 * step, "branch_siblings": 4 * (step == 2)}
            )
            advantage = [-2 / 3, 2 / 3, 2 / 3, -2 / 3][branch] if step >= 2 else 0.0
            weight = float(step >= 2)
            credit.append({"turn_id": f"g.t0.b{branch}.{step}", "advantage": advantage, "loss_weight": weight})
        won = ending == "success"
        leaf = {"episode_id": f"g.t0.b{branch}", "leaf_turn_id": f"g.t0.b{branch}.{last}", "tree_id": "g.t0"}
        episodes.append(leaf | {"ending": ending, "return": float(won), "success": won})
    return pd.DataFrame(turns), pd.DataFrame(episodes), pd.DataFrame(credit)


def expanded() -> Frames:
    """A best-first tree: 3 responses at the first state, 2 at the state of the second of them, 4 leaves of which one
    was never expanded."""
    shape: list[tuple[str, str | None, int, str, float, int, float, str | None]] = [
        ("r.b0.0", None, 0, "open fridge 1", 0.35, 3, 0.1, None),
        ("r.b1.0", None, 0, "go to shelf 2", 0.35, 3, 0.3, None),
        ("r.b2.0", None, 0, "look", 0.35, 3, -0.1, "parse_error"),
        ("r.b3.1", "r.b1.0", 1, "take pen 2 from shelf 2", 0.2, 2, 0.81, "success"),
        ("r.b4.1", "r.b1.0", 1, "take cup\x00 2 from shelf 2", 0.2, 2, -0.01, "env_error"),
    ]
    turns, episodes, credit = [], [], []
    for branch, (turn, parent, step, action, score, allocation, reward, ending) in enumerate(shape):
        turns.append(
            _ROW
            | {"turn_id": turn, "parent_id": parent, "branch": branch, "step": step, "action": action, "tree_id": "r"}
            | {"observation": "</svg><script>alert(1)</script>", "boundary_entropy": 0.7}
            | {"expand_score": score, "expand_allocation": allocation, "expand_reward": reward}
        )
        credit.append({"turn_id": turn, "advantage": reward - 0.2, "loss_weight": 1.0})
        if ending is not None:
            value = None if ending == "env_error" else float(ending == "success")
            leaf = {"episode_id": f"r.e{branch}", "leaf_turn_id": turn, "tree_id": "r", "ending": ending}
            episodes.append(leaf | {"return": value, "success": None if value is None else value == 1.0})
    return pd.DataFrame(turns), pd.DataFrame(episodes), pd.DataFrame(credit)


def write(frames: Frames, iteration: Path) -> Path:
    """Write the files of an iteration, as far as a drawing reads them, and return the directory of its rollouts."""
    rollouts, episodes, advantages = frames
    rest = {"task_id": "valid/pick", "task_type": "pick", "group_id": "g", "score": None}
    counts = {"length": 3, "sampled_tokens": 9, "prompt_tokens": 30}
    for name in ("rollout", "advantage"):
        (iteration / name).mkdir(parents=True)
    rollouts.to_parquet(iteration / "rollout" / "rollouts.parquet")
    episodes.assign(**rest, **counts).to_parquet(iteration / "rollout" / "episodes.parquet")
    advantages.to_parquet(iteration / "advantage" / "advantages.parquet")
    return iteration / "rollout"
