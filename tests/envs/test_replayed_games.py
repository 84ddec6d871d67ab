"""Replayed episodes: own random numbers, verified snapshots, faults; and the contract's checks find what breaks it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from agentbench_rl.envs import contract
from agentbench_rl.envs.contract import ContractError
from agentbench_rl.envs.listed import GameSuite, seeded_tasks
from agentbench_rl.envs.replay import ReplayedEnvironment, TextGame, seed_of
from agentbench_rl.types import AgentRLError, InfrastructureError, Observation, StepResult, Task

TASKS = seeded_tasks("dice", 0, "dice", {"train": 3})
TASK = TASKS["train"][0]
ROLLS = ["roll", "roll", "roll"]


class Dice(TextGame):
    """Rolls dice until the third roll, by both global generators."""

    def start(self, task: Task) -> str:
        self._rolls: list[int] = []
        return f"Roll {random.random()}"

    def act(self, action: str) -> StepResult:
        if action != "roll":
            return StepResult("Roll!", 0.0, False, False, valid=False)
        self._rolls.append(random.randrange(10**9) + int(np.random.randint(10**9)))
        done = len(self._rolls) == 3
        return StepResult(str(self._rolls), float(done), done, done)

    def progress(self) -> float | None:
        return len(self._rolls) / 3

    def expert_action(self) -> str | None:
        random.random()
        return "roll"


def suite_of(make: Callable[[], TextGame]) -> GameSuite:
    return GameSuite("dice", "1", TASKS, make)


@pytest.mark.parametrize("check", contract.TASK_CHECKS, ids=lambda check: check.__name__)
def test_a_game_of_global_random_numbers_keeps_the_contract(check: contract.TaskCheck) -> None:
    random.seed(time.time_ns())
    check(suite_of(Dice), TASK, ROLLS)


def test_random_numbers_outside_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    episode = suite_of(Dice).make()
    episode.reset(TASK)
    episode.step("roll")
    assert (random.random(), np.random.random()) == expected


def test_asking_the_expert_changes_nothing() -> None:
    asked, plain = suite_of(Dice).make(), suite_of(Dice).make()
    asked.reset(TASK)
    plain.reset(TASK)
    for _ in range(3):
        asked.expert_action()
        assert asked.step("roll") == plain.step("roll")
    assert asked.expert_action() is None


def test_seeds_differ_by_task() -> None:
    assert len({seed_of(task) for task in TASKS["train"]}) == 3
    assert all(0 <= seed_of(task) < 2**31 for task in TASKS["train"])


def test_a_game_that_depends_on_something_else_is_found_by_replay() -> None:
    ticks = count()

    class Clock(Dice):
        def act(self, action: str) -> StepResult:
            return StepResult(f"{super().act(action).observation} at {next(ticks)}", 0.0, False, False)

    episode = ReplayedEnvironment(Clock)
    episode.reset(TASK)
    episode.fork()
    episode.step("roll")
    with pytest.raises(InfrastructureError, match="differs after 1 actions"):
        episode.fork()


@pytest.mark.parametrize("place", ["start", "act", "state", "admissible", "progress"])
def test_what_a_game_raises_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    episode = ReplayedEnvironment(Dice)
    episode.reset(TASK)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(Dice, place, fail)
    with pytest.raises(InfrastructureError, match="ZeroDivisionError: broken"):
        episode.reset(TASK) if place == "start" else episode.step("roll")
    with pytest.raises(InfrastructureError, match="before reset"):
        episode.step("roll")


class Broken(Dice):
    """What one broken game has in common with another: nothing breaks unless it is overridden."""

    memory = count()


class Unstable(Broken):
    def act(self, action: str) -> StepResult:
        return StepResult(f"{next(self.memory)}", 0.0, False, False)


class Generous(Broken):
    def act(self, action: str) -> StepResult:
        return StepResult("Thanks.", 1.0, True, True)


class Refusing(Broken):
    def act(self, action: str) -> StepResult:
        if action != "roll":
            raise ValueError("not a roll")
        return super().act(action)


class Echoing(Broken):
    def act(self, action: str) -> StepResult:
        return StepResult(f"You said {action}", 0.0, False, False)


class Overpaid(Broken):
    def act(self, action: str) -> StepResult:
        super().act(action)
        return StepResult("Paid.", 0.5, len(self._rolls) == 3, False)


class Elated(Broken):
    def progress(self) -> float:
        return 1.5


class Unsorted(Broken):
    def admissible(self) -> list[str]:
        return ["roll", "look"]


class Forgetful(Broken):
    """Its state does not tell the rolls, which decide about the end."""

    def state(self) -> str:
        return "playing"


class Remembering(Broken):
    """Plays on where the last episode ended."""

    def start(self, task: Task) -> str:
        self._starts = getattr(self, "_starts", 0) + 1
        return f"{super().start(task)}, start {self._starts}"


@pytest.mark.parametrize(
    ("game", "check"),
    [
        (Unstable, contract.check_determinism),
        (Generous, contract.check_bad_actions),
        (Echoing, contract.check_bad_actions),
        (Overpaid, contract.check_results),
        (Elated, contract.check_results),
        (Unsorted, contract.check_results),
        (Forgetful, contract.check_keys),
        (Remembering, contract.check_no_hidden_state),
    ],
)
def test_a_broken_game_is_found(game: type[TextGame], check: contract.TaskCheck) -> None:
    suite = suite_of(game)
    actions = contract.playable(suite, TASK, ROLLS)
    with pytest.raises(ContractError, match=TASK.task_id):
        check(suite, TASK, actions)


class Renewed(ReplayedEnvironment):
    """Counts the steps that are left, and begins anew with every restore."""

    def reset(self, task: Task) -> Observation:
        self._left = 60
        return super().reset(task)

    def step(self, action: str) -> StepResult:
        self._left -= 1
        return replace(super().step(action), observation=f"{self._left} left")

    def restore(self, snapshot: object) -> None:
        super().restore(snapshot)
        self._left = 60


def test_a_budget_that_is_no_part_of_a_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suite_of(Dice)
    contract.check_siblings(suite, TASK, ROLLS)
    monkeypatch.setattr(suite, "make", lambda: Renewed(Dice))
    with pytest.raises(ContractError, match="what follows 1 actions in a sibling differs"):
        contract.check_siblings(suite, TASK, ROLLS)


class Shared(ReplayedEnvironment):
    """All that were restored of one snapshot are one episode."""

    def snapshot(self) -> Any:
        return super().snapshot(), []

    def restore(self, snapshot: Any) -> None:
        self._others = snapshot[1]
        super().restore(snapshot[0])

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        getattr(self, "_others", []).append(action)
        return replace(result, observation=f"{result.observation} {len(getattr(self, '_others', self._actions))}")


def test_a_state_that_siblings_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suite_of(Dice)
    monkeypatch.setattr(suite, "make", lambda: Shared(Dice))
    with pytest.raises(ContractError, match="in a sibling differs"):
        contract.check_siblings(suite, TASK, ROLLS)


def test_a_game_that_refuses_actions_is_found() -> None:
    with pytest.raises(InfrastructureError, match="not a roll"):
        contract.check_bad_actions(suite_of(Refusing), TASK, ROLLS)


def test_an_exported_task_of_other_content_is_refused() -> None:
    suite = suite_of(Dice)
    with pytest.raises(AgentRLError, match="another one now"):
        suite.make().reset(Task(TASK.task_id, "dice", "train", "other"))
