"""Any text environment that can be started and played, as an `Environment`: snapshots are the actions that led there.

Restore and fork play the actions again from the start and compare a digest after every step, so that what depends on
anything but task and actions is an InfrastructureError and never goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any

from agentbench_rl.types import AgentRLError, InfrastructureError, Observation, StepResult, Task


class TextGame(ABC):
    """A text environment that plays one episode after another: what an adapter writes, `start` and `act` at least.

    The global generators of `random` and numpy belong to the episode while `start` and `act` run: seeded by the task,
    and kept between the calls.
    """

    #: Raised by its author with every change of a text or an outcome; part of what identifies an episode.
    version: str = "1"

    @abstractmethod
    def start(self, task: Task) -> str:
        """Start the task anew and return its first observation; see `seed_of` for tasks that are seeds."""

    @abstractmethod
    def act(self, action: str) -> StepResult:
        """Execute an action, whatever it is; not called after the end. `progress` is filled in."""

    def state(self) -> str | None:
        """Text of the hidden state without the step counter: equal texts, equal futures; None: the history is it."""
        return None

    def admissible(self) -> list[str] | None:
        """Sorted admissible actions, or None where any text may be one."""
        return None

    def progress(self) -> float | None:
        """How much of the goal is reached, in [0, 1], or None."""
        return None

    def expert_action(self) -> str | None:
        """What an expert would do now, or None."""
        return None

    def close(self) -> None:
        """Release what is held; idempotent."""
        return


def seed_of(task: Task) -> int:
    """A seed in [0, 2^31) that is the task's own."""
    return int.from_bytes(hashlib.sha256(task.content_hash.encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment as the actions that led to it, with a digest of the start and of what each of them led to."""

    task: Task
    actions: tuple[str, ...]
    digests: tuple[str, ...]


class ReplayedEnvironment:
    """One episode of a TextGame; implements `Environment`.

    `make` makes a game. `check` raises AgentRLError for a task that must not be played.
    """

    def __init__(self, make: Callable[[], TextGame], check: Callable[[Task], object] = lambda _task: None) -> None:
        self._make, self._check = make, check
        self._game = make()
        self._task: Task | None = None
        self._actions: list[str] = []
        self._digests: list[str] = []
        self._done = False
        self._random: tuple[Any, Any] = (None, None)
        #: What the game tells of itself now: state, admissible actions, progress.
        self._told: tuple[str | None, list[str] | None, float | None] = (None, None, None)

    def reset(self, task: Task) -> Observation:
        """Start the task; raises AgentRLError for one that is not in the suite."""
        self._check(task)
        self._task, self._actions, self._digests, self._done = task, [], [], False
        self._random = _seeded(seed_of(task))
        with self._playing():
            observation = self._game.start(task)
            self._record(observation)
        return Observation(observation)

    def step(self, action: str) -> StepResult:
        """Execute an action; raises InfrastructureError after the end, or when the game fails."""
        self._started()
        if self._done:
            raise InfrastructureError("The episode is over; reset or restore comes first.")
        with self._playing():
            result = self._game.act(action)
            self._actions.append(action)
            self._done = result.done
            self._record(action, *astuple(result))
        return replace(result, process_reward=self._told[2])

    def snapshot(self) -> Snapshot:
        """The moment as a verified list of actions."""
        return Snapshot(self._started(), tuple(self._actions), tuple(self._digests))

    def restore(self, snapshot: object) -> None:
        """Play a snapshot's actions; raises InfrastructureError when anything on the way differs."""
        if not isinstance(snapshot, Snapshot):
            raise InfrastructureError(f"{type(snapshot).__name__} is no snapshot of an episode that is replayed.")
        self.reset(snapshot.task)
        self._verify(snapshot)
        for action in snapshot.actions:
            self.step(action)
            self._verify(snapshot)

    def fork(self) -> ReplayedEnvironment:
        """An independent copy, made by replay."""
        snapshot = self.snapshot()
        copy = ReplayedEnvironment(self._make, self._check)
        copy.restore(snapshot)
        return copy

    def digest(self) -> str:
        """Hash of the task, of the actions, and of all that was seen."""
        self._started()
        return self._digests[-1]

    def state_key(self) -> str:
        """Hash of task and hidden state, or of task and actions where the game does not tell its state."""
        task, state = self._started(), self._told[0]
        return _hash(task.task_id, task.content_hash, self._done, self._actions if state is None else state)

    def admissible(self) -> list[str] | None:
        """What the game says."""
        self._started()
        return self._told[1]

    def process_reward(self) -> float | None:
        """What the game says."""
        self._started()
        return self._told[2]

    def expert_action(self) -> str | None:
        """What the game's expert says; None at the end."""
        self._started()
        if self._done:
            return None
        before = self._random
        with self._playing():
            action = self._game.expert_action()
        self._random = before
        return action

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    def _started(self) -> Task:
        if self._task is None or not self._digests:
            raise InfrastructureError("Nothing is possible before reset.")
        return self._task

    def _record(self, *seen: object) -> None:
        self._told = self._game.state(), self._game.admissible(), self._game.progress()
        before = self._digests[-1] if self._digests else str(self._task)
        self._digests.append(_hash(before, seen, *self._told))

    def _verify(self, snapshot: Snapshot) -> None:
        if self._digests[-1] != snapshot.digests[len(self._actions)]:
            raise InfrastructureError(
                f"Replaying {snapshot.task.task_id} differs after {len(self._actions)} actions: the game depends on "
                "something else than task and actions."
            )

    @contextmanager
    def _playing(self) -> Iterator[None]:
        """The episode's own random numbers; what the game raises is a fault of the machinery and ends the episode."""
        assert self._task is not None
        outer = _get_random()
        _set_random(self._random)
        try:
            yield
        except (AgentRLError, InfrastructureError):
            self._digests = []
            raise
        except Exception as error:
            self._digests = []
            where = f"{self._task.task_id}, after {len(self._actions)} actions"
            raise InfrastructureError(f"{where}: the game failed: {type(error).__name__}: {error}") from error
        finally:
            self._random = _get_random()
            _set_random(outer)


def _seeded(seed: int) -> tuple[Any, Any]:
    import numpy as np

    return random.Random(seed).getstate(), np.random.RandomState(seed).get_state()


def _get_random() -> tuple[Any, Any]:
    import numpy as np

    return random.getstate(), np.random.get_state()


def _set_random(state: tuple[Any, Any]) -> None:
    import numpy as np

    random.setstate(state[0])
    np.random.set_state(state[1])


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32]
