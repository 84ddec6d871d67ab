"""ALFWorld played by TextWorld's own PDDL engine, the reference of the native one (extra `alfworld`).

TextWorld's state lives in a C library and cannot be copied, so restore and fork replay the actions from the
start and compare a digest of all facts after every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from agentbench_rl.envs.alfworld.gamefile import GameFile
from agentbench_rl.types import AgentRLError, InfrastructureError, Observation, StepResult, Task

#: The facts that decide about later texts, commands and outcomes; the others only record what was looked at.
_DECISIVE = frozenset(
    {"atlocation", "objectatlocation", "inreceptacle", "not_inreceptacle", "opened", "holds"}
    | {"isclean", "ishot", "iscool", "issliced", "istoggled"}
)


@dataclass(frozen=True, slots=True)
class ReplaySnapshot:
    """A moment as the actions that led to it, with a digest of the start and of the state after each of them."""

    game: GameFile
    actions: tuple[str, ...]
    digests: tuple[str, ...]


def textworld_version() -> str:
    """Version of the reference engine's behaviour; raises AgentRLError when TextWorld is not installed."""
    try:
        return f"alfworld-textworld-{version('textworld')}"
    except PackageNotFoundError as error:
        raise _missing() from error


class TextWorldEngine:
    """One episode of an ALFWorld game in TextWorld; implements `Environment`.

    It knows neither process rewards nor an expert.
    """

    def __init__(self, find_game: Callable[[Task], GameFile]) -> None:
        self._find_game = find_game
        self._env = _new_environment()
        self._game: GameFile | None = None
        self._state: Any = None
        self._actions: list[str] = []
        self._digests: list[str] = []

    def reset(self, task: Task) -> Observation:
        """Start the task's game; raises AgentRLError for an unknown task or one of other content."""
        self._start(self._find_game(task))
        return Observation(self._state.feedback)

    def step(self, action: str) -> StepResult:
        """Execute a command."""
        self._advance(action)
        won = bool(self._state.won)
        return StepResult(self._state.feedback, 1.0 if won else 0.0, won, won)

    def snapshot(self) -> ReplaySnapshot:
        """The moment as a verified list of actions."""
        if self._game is None:
            raise InfrastructureError("ALFWorld: reset must be called before anything else.")
        return ReplaySnapshot(self._game, tuple(self._actions), tuple(self._digests))

    def restore(self, snapshot: object) -> None:
        """Replay a snapshot; raises InfrastructureError when any state on the way differs."""
        if not isinstance(snapshot, ReplaySnapshot):
            raise InfrastructureError(f"ALFWorld: {type(snapshot).__name__} is no snapshot of TextWorld's engine.")
        self._start(snapshot.game)
        self._verify(snapshot)
        for action in snapshot.actions:
            self._advance(action)
            self._verify(snapshot)

    def fork(self) -> TextWorldEngine:
        """An independent copy, made by replay."""
        copy = TextWorldEngine(self._find_game)
        copy.restore(self.snapshot())
        return copy

    def digest(self) -> str:
        """Hash of game, all facts and step counter."""
        return self._digests[-1]

    def state_key(self) -> str:
        """Hash of game and decisive facts."""
        return self._hash(fact for fact in self._state["_facts"] if fact.name in _DECISIVE)

    def admissible(self) -> list[str]:
        """Sorted admissible commands."""
        return list(self._state.admissible_commands)

    def process_reward(self) -> None:
        """TextWorld has none."""

    def expert_action(self) -> None:
        """TextWorld has none that is fast enough to ask at every step."""

    def close(self) -> None:
        """Nothing is held that the interpreter does not release."""

    def _start(self, game: GameFile) -> None:
        with _faults_of(game, "at the start"):
            if game is not self._game:
                self._env.load(game.as_json())
                self._game = game
            self._state = self._env.reset()
        self._actions, self._digests = [], []
        self._digests.append(self._digest())

    def _advance(self, action: str) -> None:
        if self._game is None:
            raise InfrastructureError("ALFWorld: reset must be called before anything else.")
        with _faults_of(self._game, f"after {len(self._actions)} actions, at {action!r}"):
            self._state, _, _ = self._env.step(action)
        self._actions.append(action)
        self._digests.append(self._digest())

    def _verify(self, snapshot: ReplaySnapshot) -> None:
        if self._digests[-1] != snapshot.digests[len(self._actions)]:
            raise InfrastructureError(
                f"ALFWorld: replaying {snapshot.game.task_id} differs after {len(self._actions)} actions."
            )

    def _digest(self) -> str:
        return f"{self._hash(self._state['_facts'])}-{len(self._actions)}"

    def _hash(self, facts: Iterable[Any]) -> str:
        assert self._game is not None
        lines = [self._game.task_id, *sorted(str(fact) for fact in facts)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


@contextmanager
def _faults_of(game: GameFile, where: str) -> Iterator[None]:
    """Whatever TextWorld raises is a fault of the machinery: the agent's commands are answered, never refused."""
    try:
        yield
    except AgentRLError:
        raise
    except Exception as error:
        raise InfrastructureError(
            f"ALFWorld: TextWorld failed in {game.task_id} {where}: {type(error).__name__}: {error}"
        ) from error


def _new_environment() -> Any:
    try:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs.pddl import PddlEnv
    except ImportError as error:
        raise _missing() from error
    return AlfredDemangler(env=PddlEnv(EnvInfos(won=True, admissible_commands=True)), shuffle=False)


def _missing() -> AgentRLError:
    return AgentRLError(
        "The engine 'textworld' needs TextWorld and ALFWorld: pip install 'agentbench_rl[alfworld]'; "
        "or use the engine 'native', which needs neither."
    )
