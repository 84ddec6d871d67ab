"""A model-free check of an environment: its experts win, and equal actions give equal states."""

from __future__ import annotations

from collections.abc import Iterator

from agentbench_rl.config import EnvironmentConfig
from agentbench_rl.envs import open_source
from agentbench_rl.envs.base import Suite
from agentbench_rl.types import Task

_SPLITS = ("train", "valid_seen", "valid_unseen")


def check_environment(environment: EnvironmentConfig, games: int) -> Iterator[tuple[str, int, list[str]]]:
    """Yield (split, games played, what went wrong in which) after playing `games` walkthroughs of each split."""
    for split in _SPLITS:
        suite = open_source(environment, {split: None if environment.data else games})
        tasks = suite.tasks(split)
        chosen = tasks[:: max(1, len(tasks) // games)][:games]
        yield split, len(chosen), [problem for task in chosen if (problem := _problem(suite, task)) is not None]


def _problem(suite: Suite, task: Task) -> str | None:
    environment, twin = suite.make(), suite.make()
    observation = environment.reset(task).text
    twin.reset(task)
    follow = suite.demonstrator("walkthrough", environment, task, 0)
    action: str | None = None
    while (action := follow(observation, action)) is not None:
        result = environment.step(action)
        twin.step(action)
        observation = result.observation
        if environment.digest() != twin.digest():
            return f"{task.task_id}: two episodes differ after {action!r}"
        if result.done:
            return None if result.success else f"{task.task_id}: lost"
    return f"{task.task_id}: the walkthrough ends before the goal"
