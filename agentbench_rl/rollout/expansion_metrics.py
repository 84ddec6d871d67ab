"""What the rows of expanded states tell of a search: scores, allocations, rewards, depth, and what can be learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentbench_rl.config.topology import Expand
from agentbench_rl.rollout.episode import Row
from agentbench_rl.types import ALLOCATION, STATE_SCORE, STEP_REWARD


def expansion_metrics(turns: Sequence[Row], settings: Expand, dropped: int) -> dict[str, float]:
    """Metrics of the states that `turns` were sampled at, every turn once, and of `dropped` states behind a gate.

    allocation_n: share of these states with n responses. informative_groups: share of the expanded states of two and
    more responses, none lost to a fault, whose step rewards differ.
    """
    groups: dict[tuple[str, str | None], list[Row]] = {}
    for turn in turns:
        groups.setdefault((turn["tree_id"], turn["parent_id"]), []).append(turn)
    firsts = [group[0] for group in groups.values()]
    allocations = Counter(row[ALLOCATION] for row in firsts)
    allocations[0] += dropped
    rewards = [row[STEP_REWARD] for row in turns if row[STEP_REWARD] is not None]
    states = {key for turn in turns for key in (turn["state_key"], turn["next_state_key"])}
    shares = {
        f"allocation_{size}": allocations[size] / max(allocations.total(), 1)
        for size in range(settings.max_actions + 1)
    }
    return shares | {
        "mean_score": _mean([row[STATE_SCORE] for row in firsts]),
        "step_reward": _mean(rewards),
        "expansion_depth": _mean([float(row["step"]) for row in firsts]),
        "informative_groups": _mean([float(_is_informative(group)) for group in groups.values()]),
        "distinct_states": float(len(states)),
    }


def _is_informative(group: Sequence[Row]) -> bool:
    rewards = [row[STEP_REWARD] for row in group if row[STEP_REWARD] is not None]
    return len(rewards) == group[0][ALLOCATION] and len(set(rewards)) > 1


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
