"""The environment protocol: an episode is a pure function of (task, action sequence, environment version).

`contract` holds checks of what is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agentbench_rl.types import Observation, StepResult, Task


class Environment(Protocol):
    """One running episode; single-threaded, forkable, deterministic.

    Everything but `reset`, `restore` and `close` raises InfrastructureError before the first reset or restore, as every
    fault of the machinery does.
    """

    def reset(self, task: Task) -> Observation:
        """Start the task and return its first observation (goal included), whatever was played before.

        Raises AgentRLError for a task that the suite does not hold, or holds with other content.
        """

    def step(self, action: str) -> StepResult:
        """Execute one action; a malformed or inadmissible action is an answer of the environment, not an error.

        Rewards are in [0, 1], and so is their sum. Raises InfrastructureError, and changes nothing, after the end of
        the episode.
        """

    def snapshot(self) -> object:
        """Return a small, picklable value that `restore` accepts any number of times, in this or another instance."""

    def restore(self, snapshot: object) -> None:
        """Return to the state of `snapshot`; raises InfrastructureError when that is impossible."""

    def fork(self) -> Environment:
        """Return an independent copy: neither copy ever sees the other's writes."""

    def digest(self) -> str:
        """Hash of the whole hidden state, step counter included: no two moments of an episode have the same."""

    def state_key(self) -> str:
        """Canonical key of task and hidden state without the step counter: equal keys, equal futures."""

    def admissible(self) -> list[str] | None:
        """Sorted admissible actions, or None where the action space is open."""

    def process_reward(self) -> float | None:
        """Share of the goal's conditions that hold now, in [0, 1], or None."""

    def expert_action(self) -> str | None:
        """An action of an expert from this state, or None when it knows none."""

    def close(self) -> None:
        """Release what the episode holds; idempotent."""


#: From the last observation and the action that led to it (None at the start) to the expert's next action;
#: None: it gives up.
Demonstrator = Callable[[str, str | None], str | None]


class Suite(Protocol):
    """The tasks of one environment and the factory of its episodes."""

    @property
    def version(self) -> str:
        """Version of the environment's behaviour; part of what identifies an episode."""

    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in a fixed order."""

    def tasks(self, split: str) -> list[Task]:
        """Tasks of a split, sorted by task_id; raises AgentRLError for an unknown split."""

    def make(self) -> Environment:
        """A new environment instance."""

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """An expert for `environment`, just reset to `task`; raises AgentRLError for a kind it does not have."""

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write what defines these tasks to `directory`, from which an equal suite can be opened."""
