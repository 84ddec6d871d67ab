"""ALFWorld played by TextWorld's own PDDL engine, the reference of the native one (extra `alfworld`).

TextWorld's state lives in a C library and cannot be copied, so restore and fork replay the actions.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from agentbench_rl.envs.alfworld.gamefile import GameFile
from agentbench_rl.envs.replay import ReplayedEnvironment, TextGame
from agentbench_rl.types import AgentRLError, StepResult, Task

#: The facts that decide about later texts, commands and outcomes; the others only record what was looked at.
_DECISIVE = frozenset(
    {"atlocation", "objectatlocation", "inreceptacle", "not_inreceptacle", "opened", "holds"}
    | {"isclean", "ishot", "iscool", "issliced", "istoggled"}
)


def textworld_version() -> str:
    """Version of the reference engine's behaviour; raises AgentRLError when TextWorld is not installed."""
    try:
        return f"alfworld-textworld-{version('textworld')}"
    except PackageNotFoundError as error:
        raise _missing() from error


class TextWorldEngine(ReplayedEnvironment):
    """One episode of an ALFWorld game in TextWorld; implements `Environment`."""

    def __init__(self, find_game: Callable[[Task], GameFile]) -> None:
        super().__init__(lambda: _Game(find_game))


class _Game(TextGame):
    """It knows neither progress nor an expert that is fast enough to ask at every step."""

    def __init__(self, find_game: Callable[[Task], GameFile]) -> None:
        self._find_game = find_game
        self._env = _new_environment()
        self._loaded: GameFile | None = None
        self._state: Any = None

    def start(self, task: Task) -> str:
        game = self._find_game(task)
        if game is not self._loaded:
            self._env.load(game.as_json())
            self._loaded = game
        self._state = self._env.reset()
        return str(self._state.feedback)

    def act(self, action: str) -> StepResult:
        self._state, _, _ = self._env.step(action)
        won = bool(self._state.won)
        return StepResult(self._state.feedback, 1.0 if won else 0.0, won, won)

    def state(self) -> str:
        return "\n".join(sorted(str(fact) for fact in self._state["_facts"] if fact.name in _DECISIVE))

    def admissible(self) -> list[str]:
        return list(self._state.admissible_commands)


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
