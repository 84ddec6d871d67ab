"""TextWorld's engine around a TextWorld that fails: every fault is one of the machinery."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from small_games import small_game

from agentbench_rl.envs.alfworld import textworld_engine
from agentbench_rl.envs.alfworld.textworld_engine import TextWorldEngine, textworld_version
from agentbench_rl.types import AgentRLError, InfrastructureError, Task

GAME = small_game()
TASK = Task(GAME.task_id, GAME.task_type, GAME.split, GAME.content_hash)


class State(SimpleNamespace):
    """What TextWorld returns of a step."""

    def __getitem__(self, key: str) -> Any:
        return {"_facts": []}[key]


class FailingTextWorld:
    """Raises `error` where `place` says."""

    def __init__(self, place: str, error: Exception) -> None:
        self._place, self._error = place, error

    def _visit(self, place: str) -> State:
        if place == self._place:
            raise self._error
        return State(feedback="You see a fridge.", won=False, admissible_commands=["look"])

    def load(self, game: dict[str, Any]) -> None:
        self._visit("load")

    def reset(self) -> State:
        return self._visit("reset")

    def step(self, action: str) -> tuple[State, float, bool]:
        return self._visit("step"), 0.0, False


def play(monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
    monkeypatch.setattr(textworld_engine, "_new_environment", lambda: FailingTextWorld(place, error))
    engine = TextWorldEngine(lambda _: GAME)
    engine.reset(TASK)
    engine.step("look")


@pytest.mark.parametrize("place", ["load", "reset", "step"])
def test_what_textworld_raises_is_an_infrastructure_fault_that_names_the_game(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with pytest.raises(InfrastructureError, match=rf"{GAME.task_id}.*RuntimeError: broken") as caught:
        play(monkeypatch, place, RuntimeError("broken"))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_mistake_of_the_user_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentRLError, match="your data"):
        play(monkeypatch, "load", AgentRLError("your data"))


def test_a_step_before_reset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworld_engine, "_new_environment", lambda: FailingTextWorld("", RuntimeError()))
    with pytest.raises(InfrastructureError, match="reset"):
        TextWorldEngine(lambda _: GAME).step("look")


def test_the_version_of_the_engine_holds_that_of_the_installed_textworld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworld_engine, "version", {"textworld": "9.8.7"}.__getitem__)
    assert textworld_version() == "alfworld-textworld-9.8.7"
