"""Environments behind one protocol; a suite is opened by the environment's config.

A family is a package `envs/<name>` whose module `suite` has `open_source(environment, counts)` and
`open_games(environment, games, splits)`, and whose module `fetch`, where there is data to fetch, has
`fetch(destination)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.envs.base import Suite
from agentbench_rl.types import AgentRLError


def open_source(environment: EnvironmentConfig, counts: Mapping[str, int | None]) -> Suite:
    """Open the tasks an experiment draws its panels from: the data at `environment.data`, or generated ones.

    `counts` tells how many tasks of each split are wanted (None: all); a generator makes exactly so many.
    """
    check_data(environment)
    for split, count in counts.items():
        if count is None and environment.data is None:
            raise AgentRLError(f"all tasks of split {split!r} are asked for, but generated ones have no end")
    suite: Suite = _family(environment.name).open_source(environment, counts)
    return suite


def open_suite(environment: EnvironmentConfig, games: Path, splits: Sequence[str] | None = None) -> Suite:
    """Open the tasks of these splits (None: all) that the panel stage wrote to `games`."""
    suite: Suite = _family(environment.name).open_games(environment, games, splits)
    return suite


def check_data(environment: EnvironmentConfig) -> None:
    """Raise AgentRLError when `environment.data` names a path that does not exist."""
    if environment.data is not None and not environment.data.exists():
        fetch = (
            f"fetch the data with `agentrl env fetch {environment.name} DIR` or " if fetches(environment.name) else ""
        )
        raise AgentRLError(f"environment.data: {environment.data} does not exist; {fetch}correct the path")


def fetches(name: str) -> bool:
    """Whether a family has published data to fetch."""
    return find_spec(f"{__name__}.{name}.fetch") is not None


def _family(name: str) -> Any:
    """The suite module of a family; spelled out, so that the imports of a stage's code can be read."""
    if name == "alfworld":
        from agentbench_rl.envs.alfworld import suite as alfworld

        return alfworld
    if name == "math":
        from agentbench_rl.envs.math import suite as math

        return math
    if name == "search":
        from agentbench_rl.envs.search import suite as search

        return search
    if name == "webshop":
        from agentbench_rl.envs.webshop import suite as webshop

        return webshop
    if name == "code":
        from agentbench_rl.envs.code import suite as code

        return code
    if name == "gem":
        from agentbench_rl.envs.gem import suite as gem

        return gem
    if name == "textworld":
        from agentbench_rl.envs.textworld import suite as textworld

        return textworld
    if name == "custom":
        from agentbench_rl.envs.custom import suite as custom

        return custom
    raise AgentRLError(f"environment.name: there is no family {name!r}")
