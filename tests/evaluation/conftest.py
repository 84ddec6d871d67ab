"""A small comparison whose numbers can be worked out by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from agentbench_rl.evaluation.tables import MethodResult

CURVE = ["update", "played_episodes", "sampled_tokens", "split", "metric", "mean", "low", "high", "episodes", "by_task"]


def episodes(*rows: tuple[str, str, str, int]) -> pd.DataFrame:
    """Rows of (task, task type, ending, length); success follows from the ending, null for a fault."""
    faults = {"env_error", "timeout", "grader_error"}
    records = [
        {
            "episode_id": f"e{index}",
            "task_id": task,
            "task_type": task_type,
            "ending": ending,
            "success": None if ending in faults else ending == "success",
            "return": None if ending in faults else float(ending == "success"),
            "length": length,
            "sampled_tokens": 10 * length,
            "invalid_turns": 1,
            "calls": length,
            "tool_calls": 2,
        }
        for index, (task, task_type, ending, length) in enumerate(rows)
    ]
    return pd.DataFrame(records)


def curve(*points: tuple[int, int, float | tuple[float, float]], episodes_per_update: int = 8) -> pd.DataFrame:
    """Points of (update, sampled tokens, validation success of both tasks, a and b)."""
    rows = []
    for update, tokens, told in points:
        a, b = told if isinstance(told, tuple) else (told, told)
        mean, played = (a + b) / 2, update * episodes_per_update
        numbers = (mean, mean - 0.1, mean + 0.1, 20, {"a": a, "b": b})
        rows.append((update, played, tokens, "validation", "success", *numbers))
    return pd.DataFrame(rows, columns=CURVE)


@pytest.fixture(scope="session")
def results() -> list[MethodResult]:
    start = episodes(
        ("a", "put", "success", 2),
        ("a", "put", "failure", 8),
        ("b", "put", "truncated_turns", 10),
        ("b", "put", "truncated_tokens", 10),
        ("c", "heat", "env_error", 1),
        ("c", "heat", "failure", 5),
    )
    grpo = episodes(
        ("a", "put", "success", 2),
        ("a", "put", "success", 4),
        ("b", "put", "success", 6),
        ("b", "put", "failure", 10),
        ("c", "heat", "timeout", 3),
        ("c", "heat", "success", 5),
    )
    other = episodes(
        ("a", "put", "success", 2),
        ("b", "put", "failure", 4),
        ("c", "heat", "grader_error", 3),
    )
    ledger = {"env_steps": 640.0, "wall_seconds": 60.0, "forks": 0.0}
    return [
        MethodResult("grpo", 0, grpo, 8000, 10, ledger, curve((0, 0, 0.2), (5, 4000, 0.55), (10, 8000, 0.6))),
        MethodResult("sft", None, start, curve=curve((0, 0, 0.2))),
        MethodResult("bpo", 0, other, 5000, 5, ledger, curve((0, 0, 0.2), (5, 5000, 0.9))),
    ]
