r"""Games of GEM (arXiv 2510.01051), `game:…` and `rg:…` ids: a task is a seed.

Rewards are cut to [0, 1]; success is an end with the full reward. Two seeds can give one game where there are few.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentbench_rl.config.environment import GemEnvironment
from agentbench_rl.envs.listed import GameSuite, read_listed, seeded_tasks
from agentbench_rl.envs.replay import TextGame, seed_of
from agentbench_rl.types import AgentRLError, StepResult, Task

#: Raised with every change of the adapter that changes a text or an outcome.
VERSION = "gem-1"


class GemGame(TextGame):
    """A game by its id; `options` go to its constructor."""

    def __init__(self, game: str, options: Mapping[str, Any]) -> None:
        self._gem, self._id, self._options = _gem(game), game, dict(options)
        self._env: Any = None
        self._paid = 0.0

    def start(self, task: Task) -> str:
        """Make the game of the task's seed."""
        seed = seed_of(task)
        own = {"size": 1, "seed": seed} if self._id.startswith("rg:") else {}
        self._env, self._paid = self._gem.make(self._id, **own, **self._options), 0.0
        text, info = self._env.reset(seed=seed)
        return _with_suffix(text, info)

    def act(self, action: str) -> StepResult:
        """Execute an action."""
        text, reward, terminated, truncated, info = self._env.step(action)
        done = bool(terminated or truncated)
        paid = min(max(float(reward), 0.0), 1.0 - self._paid)
        self._paid += paid
        shown = text if done else _with_suffix(text, info)
        return StepResult(shown, paid, done, done and float(reward) >= 1.0)

    def expert_action(self) -> str | None:
        """The answer of a `rg:` question, which is known."""
        data = getattr(self._env, "data", None)
        return rf"\boxed{{{data['answer']}}}" if self._id.startswith("rg:") and data else None


def open_source(environment: GemEnvironment, counts: Mapping[str, int | None]) -> GameSuite:
    """So many seeds of each split."""
    identity = [environment.game, environment.options]
    return _suite(environment, seeded_tasks(environment.game, environment.generator.seed, identity, counts))


def open_games(environment: GemEnvironment, games: Path, splits: Sequence[str] | None) -> GameSuite:
    """The tasks that the panel stage wrote."""
    return _suite(environment, read_listed(games, splits))


def _suite(environment: GemEnvironment, tasks: Mapping[str, Sequence[Task]]) -> GameSuite:
    _gem(environment.game)
    return GameSuite(
        f"GEM's {environment.game}",
        f"{VERSION}, gem-llm {version('gem-llm')}",
        tasks,
        lambda: GemGame(environment.game, environment.options),
    )


def _gem(game: str) -> Any:
    """The package, its games registered; raises AgentRLError without it, or when it does not know `game`."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        version("gem-llm")
        import gem
        import gem.envs
        from gem.envs.registration import ENV_REGISTRY
    except (ImportError, PackageNotFoundError) as error:
        raise AgentRLError(f"environment gem: {error}; pip install 'agentbench_rl[gem]'") from error
    finally:
        # Importing GEM writes all log messages of all libraries to the terminal.
        root.handlers[:] = handlers
        root.setLevel(level)
    if game not in ENV_REGISTRY:
        raise AgentRLError(f"environment.game: gem-llm knows no {game!r}; `gem.print_envs()` lists what it knows")
    return gem


def _with_suffix(text: str, info: Mapping[str, Any]) -> str:
    suffix = info.get("suffix")
    return f"{text}\n{suffix}" if suffix else str(text)
