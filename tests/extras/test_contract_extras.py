"""The contract, for environments whose packages are extras: ALFWorld in TextWorld, GEM, games of tw-make."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.envs import contract, open_source
from agentbench_rl.envs.alfworld.textworld_cache import memoised
from agentbench_rl.envs.base import Suite
from agentbench_rl.presets import load_environment

pytestmark = pytest.mark.extras
GAMES = {"textworld": 0, "gem": 10, "alfworld": 4}
OPTIONS = ("--world-size", "2", "--nb-objects", "4", "--quest-length", "3")


@cache
def opened(name: str, *changes: str) -> tuple[EnvironmentConfig, Suite, int]:
    environment = load_environment(name, changes)
    games = GAMES[environment.name]
    return environment, open_source(environment, contract.counts(environment, games)), games


@pytest.fixture(scope="session")
def made_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two games per split."""
    command = shutil.which("tw-make", path=str(Path(sys.executable).parent)) or shutil.which("tw-make")
    assert command, "tw-make comes with TextWorld"
    directory = tmp_path_factory.mktemp("games")
    (directory / "home").mkdir()
    for number, split in enumerate(("train", "train", "validation", "test")):
        file = directory / split / f"game{number}.z8"
        file.parent.mkdir(exist_ok=True)
        call = [command, "custom", *OPTIONS, "--seed", str(number), "--output", str(file), "--silent"]
        # The compiler writes to the home directory.
        surroundings = {"PATH": f"{Path(command).parent}:/usr/bin:/bin", "HOME": str(directory / "home")}
        subprocess.run(call, check=True, capture_output=True, cwd=directory, env=surroundings)
    return directory


Opened = Callable[[], tuple[EnvironmentConfig, Suite, int]]


@pytest.fixture(params=["alfworld", "textworld", "guess", "minesweeper", "question"])
def open_one(request: pytest.FixtureRequest) -> Iterator[Opened]:
    pytest.importorskip("textworld" if request.param in ("alfworld", "textworld") else "gem")
    if request.param == "alfworld":
        pytest.importorskip("alfworld")
        with memoised():
            yield lambda: opened("alfworld", "engine=textworld", "generator.objects=[5, 6]")
    elif request.param == "textworld":
        data = request.getfixturevalue("made_games")
        yield lambda: opened("textworld", f"data={data}")
    else:
        game = {"guess": "game:GuessTheNumber-v0-easy", "minesweeper": "game:Minesweeper-v0-easy"}
        yield lambda: opened("gem", f"game={game.get(request.param, 'rg:chain_sum')}")


def actions_of(environment: EnvironmentConfig, suite: Suite) -> list[str]:
    actions, success = contract.expert_actions(environment, suite, suite.tasks("train")[0])
    assert success == bool(actions)
    guesses = [rf"\boxed{{{guess}}}" for guess in ("5", "5", "3", "reveal 0 0", "flag 1 1")]
    return actions or contract.playable(suite, suite.tasks("train")[0], guesses)


@pytest.mark.parametrize("check", contract.TASK_CHECKS, ids=lambda check: check.__name__)
def test_episodes_keep_the_contract(open_one: Opened, check: contract.TaskCheck) -> None:
    environment, suite, _ = open_one()
    check(suite, suite.tasks("train")[0], actions_of(environment, suite))


def test_tasks_are_stable_sorted_and_disjoint(open_one: Opened) -> None:
    contract.check_tasks(*open_one())


def test_the_expert_wins(open_one: Opened) -> None:
    environment, suite, _ = open_one()
    for split in suite.splits():
        contract.check_expert(environment, suite, suite.tasks(split))


def test_an_export_plays_as_the_source(open_one: Opened) -> None:
    environment, suite, _ = open_one()
    contract.check_export(environment, suite, suite.tasks("train")[0], actions_of(environment, suite))
