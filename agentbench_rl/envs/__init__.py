"""Environments behind one protocol; a suite is opened by the environment's config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentbench_rl.config import EnvironmentConfig
from agentbench_rl.envs.base import Suite
from agentbench_rl.types import AgentRLError


def open_source(environment: EnvironmentConfig, counts: Mapping[str, int | None]) -> Suite:
    """Open the tasks an experiment draws its panels from: the data at `environment.data`, or generated ones.

    `counts` tells how many tasks of each split are wanted (None: all); a generator makes exactly so many.
    """
    from agentbench_rl.envs.alfworld.generator import generate_split
    from agentbench_rl.envs.alfworld.suite import AlfworldSuite

    check_data(environment)
    if environment.data is not None:
        return AlfworldSuite.from_path(environment.data, tuple(counts), engine=environment.engine)
    games = {}
    for split, count in counts.items():
        if count is None:
            raise AgentRLError(f"all tasks of split {split!r} are asked for, but generated games have no end")
        sizes = environment.generator.model_dump(exclude={"seed"})
        games[split] = generate_split(environment.generator.seed, split, count, **sizes)
    return AlfworldSuite(games, engine=environment.engine)


def check_data(environment: EnvironmentConfig) -> None:
    """Raise AgentRLError when `environment.data` names a path that does not exist."""
    if environment.data is not None and not environment.data.exists():
        raise AgentRLError(
            f"environment.data: {environment.data} does not exist; "
            "fetch the games with `agentrl env fetch alfworld DIR` or correct the path"
        )


def open_suite(environment: EnvironmentConfig, games: Path, splits: Sequence[str] | None = None) -> Suite:
    """Open the games of these splits (None: all) that the panel stage wrote to `games`."""
    from agentbench_rl.envs.alfworld.suite import AlfworldSuite

    return AlfworldSuite.from_path(games, splits, engine=environment.engine)
