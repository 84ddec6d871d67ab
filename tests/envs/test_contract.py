"""The contract that every environment keeps, checked for all that ship; and that the checks find what breaks it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.envs import contract, open_source
from agentbench_rl.envs.base import Suite
from agentbench_rl.envs.code.sandbox import bubblewrap_problem
from agentbench_rl.presets import load_environment, preset_names
from agentbench_rl.types import Task

#: Tasks per split that the expert plays; faults in programs are slow to make.
GAMES = {"code": 1}
#: Those that need packages of an extra are checked in tests/extras.
CHECKED = tuple(
    name for name in preset_names("environments") if not name.endswith("-instruct") and name not in ("gem", "textworld")
)


@cache
def opened(name: str) -> tuple[EnvironmentConfig, Suite, int]:
    unisolated = ["isolation=none"] if name == "code" and bubblewrap_problem() is not None else []
    environment = load_environment(name, unisolated)
    games = GAMES.get(environment.name, 10)
    return environment, open_source(environment, contract.counts(environment, games)), games


@cache
def played(name: str, split: str) -> tuple[Task, list[str]]:
    environment, suite, _ = opened(name)
    task = suite.tasks(split)[0]
    actions, success = contract.expert_actions(environment, suite, task)
    assert success
    return task, actions


@pytest.mark.parametrize("check", contract.TASK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CHECKED)
def test_episodes_keep_the_contract(name: str, check: contract.TaskCheck) -> None:
    environment, suite, _ = opened(name)
    task, actions = played(name, environment.splits[0])
    check(suite, task, actions)


@pytest.mark.parametrize("name", CHECKED)
def test_tasks_are_stable_sorted_and_disjoint(name: str) -> None:
    environment, suite, games = opened(name)
    contract.check_tasks(environment, suite, games)


@pytest.mark.parametrize("name", CHECKED)
def test_the_expert_wins(name: str) -> None:
    environment, suite, _ = opened(name)
    for split in suite.splits():
        contract.check_expert(environment, suite, suite.tasks(split))


#: Real data, in `data_dir`, with the settings that they need.
REAL = {"alfworld": (), "webshop": (), "search": (), "math": ("benchmark=math500",)}


@pytest.mark.parametrize("name", [name for name in CHECKED if name in REAL])
def test_real_data_keep_the_contract(name: str, data_dir: Path) -> None:
    environment = load_environment(name, [f"data={data_dir / name}", *REAL[name]])
    suite = open_source(environment, contract.counts(environment, 0))
    task = suite.tasks(environment.splits[-1])[3]
    actions, _ = contract.expert_actions(environment, suite, task)
    for check in contract.TASK_CHECKS:
        check(suite, task, actions)
    contract.check_export(environment, suite, task, actions)
    contract.check_tasks(environment, suite, 0)
    for split in suite.splits():
        contract.check_expert(environment, suite, suite.tasks(split)[:20])


@pytest.mark.parametrize("name", CHECKED)
def test_an_export_plays_as_the_source(name: str) -> None:
    environment, suite, _ = opened(name)
    for split in (environment.splits[0], environment.splits[-1]):
        contract.check_export(environment, suite, *played(name, split))
