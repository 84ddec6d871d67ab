"""ALFWorld played natively: TextWorld's texts, commands and outcomes over a state that is a value.

A step replaces the state, so that a snapshot or a fork is a reference, whatever the length of the episode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from agentbench_rl.envs.alfworld.actions import NOTHING_HAPPENS, commands, introduction
from agentbench_rl.envs.alfworld.progress import progress
from agentbench_rl.envs.alfworld.world import Action, State, World
from agentbench_rl.types import InfrastructureError, Observation, StepResult, Task


@dataclass(frozen=True, slots=True)
class Snapshot:
    """World, state and number of steps taken."""

    world: World
    state: State
    steps: int


class AlfworldEngine:
    """One episode of an ALFWorld game; implements `Environment`.

    `find_world` returns the parsed game of a task. `reset` comes first, unless `at_start` made the engine.
    """

    __slots__ = ("_commands", "_find_world", "_key", "_progress", "_state", "_steps", "_world")

    _state: State
    _steps: int
    #: What is derived from the state once it is asked for.
    _commands: dict[str, Action] | None
    _progress: float | None
    _key: str | None

    def __init__(self, find_world: Callable[[Task], World]) -> None:
        self._find_world = find_world
        self._world: World | None = None
        self._commands = self._progress = self._key = None

    @classmethod
    def at_start(cls, world: World) -> AlfworldEngine:
        """An engine at the start of a world, for use without a suite; its `reset` starts this world again."""
        engine = cls(lambda _task: world)
        engine._enter(Snapshot(world, world.start, 0))
        return engine

    @property
    def world(self) -> World:
        """The game that is being played."""
        if self._world is None:
            raise InfrastructureError("ALFWorld: reset must be called before anything else.")
        return self._world

    @property
    def state(self) -> State:
        """The hidden state now."""
        return self.snapshot().state

    def reset(self, task: Task) -> Observation:
        """Start the task's game; raises AgentRLError for an unknown task or one of other content."""
        world = self._find_world(task)
        self._enter(Snapshot(world, world.start, 0))
        return Observation(introduction(world, world.start))

    def step(self, action: str) -> StepResult:
        """Execute a command; anything else than an admissible command answers "Nothing happens.".

        Raises InfrastructureError after the end.
        """
        if self.process_reward() == 1.0:
            raise InfrastructureError("ALFWorld: the episode is over; reset or restore comes first.")
        known = self._table().get(action.strip())
        observation = NOTHING_HAPPENS
        self._steps += 1
        if known is not None:
            transition, numbers = known
            state, observation = transition(self._world, self._state, *numbers)
            if state is not self._state:
                self._become(state)
        reached = self.process_reward()
        won = reached == 1.0
        return StepResult(observation, 1.0 if won else 0.0, won, won, reached)

    def snapshot(self) -> Snapshot:
        """The moment as a value."""
        return Snapshot(self.world, self._state, self._steps)

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot of any native engine; raises InfrastructureError for anything else."""
        if not isinstance(snapshot, Snapshot):
            raise InfrastructureError(f"ALFWorld: {type(snapshot).__name__} is no snapshot of the native engine.")
        self._enter(snapshot)

    def fork(self) -> AlfworldEngine:
        """An independent copy; it shares only values that never change."""
        copy = AlfworldEngine(self._find_world)
        copy._world, copy._state, copy._steps = self.world, self._state, self._steps
        copy._commands, copy._progress, copy._key = self._commands, self._progress, self._key
        return copy

    def digest(self) -> str:
        """Hash of game, state and step counter."""
        return _hash(f"{self.state_key()} {self._steps}")

    def state_key(self) -> str:
        """Hash of game and state."""
        if self._key is None:
            canonical = [sorted(part) if isinstance(part, frozenset) else part for part in self.state]
            self._key = _hash(f"{self.world.task_id} {canonical}")
        return self._key

    def admissible(self) -> list[str]:
        """Sorted admissible commands."""
        return sorted(self._table())

    def process_reward(self) -> float:
        """Share of the goal's conditions that hold, see `progress`."""
        if self._progress is None:
            self._progress = progress(self.world, self._state)
        return self._progress

    def expert_action(self) -> str | None:
        """First command of a plan made with full information; None when won or without a plan."""
        from agentbench_rl.envs.alfworld.expert import plan

        actions = plan(self)
        return actions[0] if actions else None

    def close(self) -> None:
        """Nothing is held."""

    def _enter(self, moment: Snapshot) -> None:
        self._world, self._steps = moment.world, moment.steps
        self._become(moment.state)

    def _become(self, state: State) -> None:
        self._state = state
        self._commands = self._progress = self._key = None

    def _table(self) -> dict[str, Action]:
        if self._commands is None:
            self._commands = commands(self.world, self._state)
        return self._commands


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
