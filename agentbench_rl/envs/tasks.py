"""The tasks of a suite: by split, by id, and whether a task is still the one that was drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentbench_rl.types import AgentRLError, Task


class SplitTasks:
    """What all suites have in common of `Suite`; `name` of the family and `noun` of its tasks stand in messages."""

    def __init__(self, name: str, noun: str, version: str, tasks: Mapping[str, Iterable[Task]]) -> None:
        self._name, self._noun, self._version = name, noun, version
        self._tasks = {split: sorted(members, key=lambda task: task.task_id) for split, members in tasks.items()}
        self._by_id = {task.task_id: task for members in self._tasks.values() for task in members}

    @property
    def version(self) -> str:
        """Version of the environment's behaviour."""
        return self._version

    def splits(self) -> tuple[str, ...]:
        """Names of the splits, as they were given."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> list[Task]:
        """Tasks of a split, sorted by task_id; raises AgentRLError for an unknown split."""
        if split not in self._tasks:
            raise AgentRLError(f"{self._name} has no split {split!r} here; there are: {', '.join(self._tasks)}.")
        return list(self._tasks[split])

    def check(self, task: Task) -> None:
        """Raise AgentRLError for a task that is not in the suite, or is another one there."""
        known = self._by_id.get(task.task_id)
        if known is None:
            raise AgentRLError(
                f"{self._name}: no {self._noun} {task.task_id!r} among the loaded splits; check the data."
            )
        if known.content_hash != task.content_hash:
            raise AgentRLError(
                f"{self._name}: the {self._noun} {task.task_id!r} is another one now: it differs from the one the task "
                f"was drawn from (content {known.content_hash[:12]}, expected {task.content_hash[:12]}); restore the "
                "data or draw the panels anew."
            )
