"""Episodes: a function of task and actions, values that can be copied, and turns outside the grammar are harmless."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from agentbench_rl.config.environment import MathEnvironment
from agentbench_rl.envs.math.environment import CORRECT, WRONG
from agentbench_rl.envs.math.problems import Problem
from agentbench_rl.envs.math.suite import MathSuite, open_games, open_source
from agentbench_rl.types import AgentRLError, InfrastructureError, StepResult, Task

SUM = Problem("sums-3", "4 * 3 - 2 =", "10", "number", ("4 * 3", "12 - 2"))


def start(problem: Problem = SUM, **settings: Any) -> Any:
    suite = MathSuite({"train": [problem]}, MathEnvironment(name="math", **settings))
    episode = suite.make()
    assert episode.reset(suite.tasks("train")[0]).text == problem.question
    return episode


def test_one_right_answer_wins_at_once() -> None:
    assert start().step("10") == StepResult(CORRECT, 1.0, True, True, 1.0, valid=True)


def test_one_wrong_answer_loses() -> None:
    assert start().step("11") == StepResult(WRONG, 0.0, True, False, 0.0, valid=True)


@pytest.mark.parametrize("action", ["", "ten", "10\n10", "answer: 10", "🦆", "1" * 100_000, "\x00"])
def test_what_is_no_answer_loses_and_is_invalid(action: str) -> None:
    assert start().step(action) == StepResult(WRONG, 0.0, True, False, 0.0, valid=False)


def test_boxed_answers_stand_in_any_text() -> None:
    assert start(answer_format="boxed").step("It is 12 - 2, so \\boxed{10}.").success
    assert not start(answer_format="boxed").step("10").valid


def test_progress_is_the_share_of_needed_values_shown_and_the_answer() -> None:
    episode = start(calculator=True)
    assert episode.process_reward() == 0
    assert episode.step("calc: 4 * 3") == StepResult("12", 0.0, False, False, 1 / 3, tool_calls=1)
    assert episode.step("calc: 6 + 6").process_reward == 1 / 3
    assert episode.step("calc: 12 - 2").process_reward == 2 / 3
    assert episode.step("answer: 10") == StepResult(CORRECT, 1.0, True, True, 1.0)


def test_repeating_a_needed_value_is_no_progress() -> None:
    assert start(calculator=True).step("calc: 12").process_reward == 0


def test_a_right_answer_without_the_calculator_is_full_progress() -> None:
    assert start(calculator=True).step("answer: 10").process_reward == 1


def test_a_wrong_answer_keeps_the_progress_made() -> None:
    episode = start(calculator=True)
    episode.step("calc: 4 * 3")
    assert episode.step("answer: 12") == StepResult(WRONG, 0.0, True, False, 1 / 3)


@pytest.mark.parametrize(
    "action", ["", "10", "calc: 4 x 3", "calc: open('f')", "Answer: 10", "🦆", "calc: " + "1" * 100_000]
)
def test_turns_outside_the_grammar_change_nothing_but_the_turn_counter(action: str) -> None:
    episode = start(calculator=True)
    key, digest = episode.state_key(), episode.digest()
    result = episode.step(action)
    assert (result.valid, result.done, result.reward, result.tool_calls) == (False, False, 0.0, 0)
    assert episode.state_key() == key
    assert episode.digest() != digest
    assert episode.step("answer: 10").success


def test_a_division_by_zero_is_a_valid_turn_that_shows_an_error() -> None:
    assert start(calculator=True).step("calc: 1 / 0") == StepResult(
        "error: division by zero", 0.0, False, False, 0.0, 1
    )


def test_equal_actions_give_equal_episodes() -> None:
    def play() -> list[object]:
        episode = start(calculator=True)
        results = [episode.step(action) for action in ("calc: 4 * 3", "what?", "calc: 12 - 2", "answer: 10")]
        return [*results, episode.digest(), episode.state_key()]

    assert play() == play()


def test_forks_and_snapshots_are_independent() -> None:
    episode = start(calculator=True)
    episode.step("calc: 4 * 3")
    copy, snapshot = episode.fork(), pickle.loads(pickle.dumps(episode.snapshot()))
    assert copy.digest() == episode.digest()
    before = episode.digest()
    copy.step("answer: 11")
    assert episode.digest() == before
    episode.step("answer: 10")
    other = start(SUM, calculator=True)
    other.restore(snapshot)
    assert other.digest() == before
    assert other.step("answer: 10").success


def test_the_state_key_knows_what_was_shown_and_not_how_long_it_took() -> None:
    one, other = start(calculator=True), start(calculator=True)
    one.step("calc: 4 * 3")
    assert one.state_key() != other.state_key()
    other.step("calc: 1 + 1")
    other.step("calc: 3 * 4")
    assert one.state_key() == other.state_key()


def test_a_finished_episode_refuses_steps() -> None:
    episode = start()
    episode.step("10")
    assert episode.expert_action() is None
    with pytest.raises(InfrastructureError, match="episode is over"):
        episode.step("10")


def test_an_episode_without_reset_and_a_foreign_snapshot_are_refused() -> None:
    episode = MathSuite({}, MathEnvironment(name="math")).make()
    with pytest.raises(InfrastructureError, match="reset must be called"):
        episode.step("10")
    with pytest.raises(InfrastructureError, match="no snapshot"):
        episode.restore("10")


@pytest.mark.parametrize("answer_format", ["plain", "boxed"])
@pytest.mark.parametrize("calculator", [False, True])
def test_the_expert_wins(answer_format: str, calculator: bool) -> None:
    settings: Any = {"answer_format": answer_format, "calculator": calculator}
    environment = MathEnvironment(name="math", generator={"brackets": True, "terms": (2, 5)}, **settings)
    suite = open_source(environment, {"test": 30})
    for task in suite.tasks("test"):
        episode = suite.make()
        episode.reset(task)
        follow = suite.demonstrator("scripted", episode, task, 0)
        results = []
        while (action := follow("", None)) is not None:
            results.append(episode.step(action))
        assert results[-1].success
        assert all(result.valid for result in results)
        assert len(results) <= 5


def test_an_unknown_expert_is_told() -> None:
    suite = open_source(MathEnvironment(name="math"), {"train": 1})
    with pytest.raises(AgentRLError, match="no expert 'walkthrough'; there is scripted"):
        suite.demonstrator("walkthrough", suite.make(), suite.tasks("train")[0], 0)


def test_exported_problems_open_again(tmp_path: Path) -> None:
    environment = MathEnvironment(name="math")
    suite = open_source(environment, {"train": 5, "test": 3})
    suite.export([*suite.tasks("train")[:4], *suite.tasks("test")], tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["games_test.jsonl", "games_train.jsonl"]
    again = open_games(environment, tmp_path, None)
    assert again.tasks("train") == suite.tasks("train")[:4]
    assert again.tasks("test") == suite.tasks("test")
    assert open_games(environment, tmp_path, ["test"]).splits() == ("test",)


@pytest.mark.parametrize("damage", ['{"question": ', '{"question": "1 + 1 ="}', "[]"])
def test_damaged_exports_are_told(tmp_path: Path, damage: str) -> None:
    environment = MathEnvironment(name="math")
    suite = open_source(environment, {"train": 1})
    suite.export(suite.tasks("train"), tmp_path)
    with (tmp_path / "games_train.jsonl").open("a") as file:
        file.write(damage)
    with pytest.raises(AgentRLError, match=r"games_train\.jsonl, line 2"):
        open_games(environment, tmp_path, None)


def test_tasks_that_are_unknown_or_of_other_content_are_told() -> None:
    suite = open_source(MathEnvironment(name="math"), {"train": 1})
    (task,) = suite.tasks("train")
    with pytest.raises(AgentRLError, match="no problem 'sums-2/0'"):
        suite.make().reset(Task("sums-2/0", "sums-2", "train", "0"))
    with pytest.raises(AgentRLError, match="differs from the one the task was drawn from"):
        suite.make().reset(Task(task.task_id, task.task_type, "train", "0"))
    with pytest.raises(AgentRLError, match="no split 'test'"):
        suite.tasks("test")
