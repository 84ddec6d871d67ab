"""Episodes of code repair: tools, grading, forks, limits and what lies outside the grammar."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
from code_games import SOLUTION, small_suite
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.envs.base import Environment
from agentbench_rl.envs.code.actions import edit_action
from agentbench_rl.envs.code.episode import CodeEpisode
from agentbench_rl.types import AgentRLError, InfrastructureError, Task

SUITE = small_suite()
TASK = SUITE.tasks("train")[0]


@pytest.fixture
def episode() -> Iterator[Environment]:
    environment = SUITE.make()
    environment.reset(TASK)
    yield environment
    environment.close()


def test_the_first_observation_tells_report_and_files(episode: Environment) -> None:
    text = episode.reset(TASK).text
    assert "double is wrong" in text
    assert "sums.py" in text
    assert "* 2" not in text


def test_the_tools_show_the_tree(episode: Environment) -> None:
    assert episode.step("list").observation == "sums.py\ntests/test_sums.py"
    assert episode.step("list tests").observation == "tests/test_sums.py"
    assert episode.step("read sums.py 2 2").observation == "    return x * 3"
    assert episode.step("read sums.py").observation.count("\n") == 5
    assert episode.step("read sums.py 6").observation == "    return values[0]"
    assert episode.step("search values[").observation == "sums.py:6: return values[0]"
    assert "1 passed, 0 failed" in episode.step("test").observation


def test_the_hidden_tests_are_not_in_the_tree(episode: Environment) -> None:
    assert "test_double" not in episode.step("read tests/test_sums.py").observation
    assert episode.step("search test_double_negative").observation == "Nothing found."


def test_a_repair_pays_at_submit_alone(episode: Environment) -> None:
    assert episode.process_reward() == 0.5
    edited = episode.step(SOLUTION)
    assert (edited.reward, edited.done, edited.process_reward) == (0.0, False, 1.0)
    graded = episode.step("submit")
    assert (graded.reward, graded.done, graded.success, graded.valid) == (1.0, True, True, True)


def test_an_unrepaired_tree_pays_nothing(episode: Environment) -> None:
    graded = episode.step("submit")
    assert (graded.reward, graded.done, graded.success, graded.process_reward) == (0.0, True, False, 0.5)


def test_the_last_turn_is_graded() -> None:
    suite = small_suite(max_turns=2)
    environment = suite.make()
    environment.reset(TASK)
    assert not environment.step("list").done
    last = environment.step(SOLUTION)
    assert (last.done, last.success, last.reward) == (True, True, 1.0)


def test_a_step_after_the_end_is_refused(episode: Environment) -> None:
    episode.step("submit")
    with pytest.raises(InfrastructureError, match="over"):
        episode.step("list")


def test_replaced_visible_tests_do_not_count(episode: Environment) -> None:
    old = "def test_first():\n    assert first([4, 5]) == 4"
    episode.step(edit_action("tests/test_sums.py", old, "def test_double():\n    assert True"))
    assert "1 passed" in episode.step("test").observation
    assert not episode.step("submit").success


def test_code_that_breaks_everything_pays_nothing(episode: Environment) -> None:
    broken = episode.step(edit_action("sums.py", "def double(x):", "def double(x)"))
    assert (broken.process_reward, broken.valid) == (0.0, True)
    assert "SyntaxError" in episode.step("test").observation
    assert not episode.step("submit").success


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "return [0] * 10**10", "import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"],
    ids=["endless", "memory", "exit", "kill"],
)
def test_runaway_code_is_a_failure_of_the_agent(episode: Environment, body: str) -> None:
    result = episode.step(edit_action("sums.py", "    return x * 3", f"    {body}"))
    assert result.process_reward is not None
    assert result.process_reward < 1.0
    graded = episode.step("submit")
    assert (graded.reward, graded.done, graded.success) == (0.0, True, False)


def test_runaway_imports_are_a_failure_of_the_agent(episode: Environment) -> None:
    result = episode.step(edit_action("sums.py", "def double(x):", "while True: pass\ndef double(x):"))
    assert result.process_reward == 0.0


def test_a_flood_of_output_is_cut(episode: Environment) -> None:
    episode.step(edit_action("long.txt", "", "word\n" * 10_000))
    shown = episode.step("read long.txt").observation
    assert len(shown) < 8100
    assert "more characters]" in shown
    body = "for _ in range(10**7): print('x' * 10**4)"
    episode.step(edit_action("sums.py", "    return values[0]", f"    {body}"))
    flooded = episode.step("test").observation
    assert "output limit" in flooded
    assert len(flooded) < 2000


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x.py", "tests/../../x", "~/x", "a/../../etc/passwd", "a\\b", "tests/\0", "."]
)
@pytest.mark.parametrize("call", ["read {}", "edit {}\n<<<<\n====\nx\n>>>>"], ids=["read", "edit"])
def test_paths_outside_the_tree_are_refused(episode: Environment, path: str, call: str) -> None:
    before = episode.state_key()
    result = episode.step(call.format(path))
    assert "root:" not in result.observation
    assert episode.state_key() == before
    assert not result.valid


@pytest.mark.parametrize(
    "action",
    [
        "",
        "help",
        "read",
        "read a b c d",
        "read sums.py 0",
        "read sums.py 4 2",
        "read sums.py ²",
        "search",
        "submit now",
        "list\nlist",
        "edit sums.py",
        "edit sums.py\n<<<<\na\n>>>>",
        "edit sums.py\n<<<<\na\n====\nb\n====\nc\n>>>>",
        "edit\n<<<<\na\n====\nb\n>>>>",
        "\ud800",
        "é" * 100_000,
    ],
)
def test_what_is_no_tool_call_is_invalid_and_harmless(episode: Environment, action: str) -> None:
    before = episode.state_key()
    result = episode.step(action)
    assert (result.valid, result.reward, result.done, result.tool_calls) == (False, 0.0, False, 0)
    assert result.observation.startswith("Error: ")
    assert len(result.observation) < 300
    assert episode.state_key() == before


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("read nothing.py", "There is no file"),
        ("read sums.py 99", "has 6 lines"),
        ("list nowhere", "nothing at"),
        ("test nowhere", "There is no test"),
        (edit_action("sums.py", "absent", "x"), "0 times"),
        (edit_action("sums.py", "return", "x"), "2 times"),
        (edit_action("sums.py", "", "x"), "exists"),
        (edit_action("none.py", "a", "x"), "There is no file"),
    ],
)
def test_calls_that_miss_are_answered(episode: Environment, action: str, answer: str) -> None:
    result = episode.step(action)
    assert result.valid
    assert answer in result.observation


def test_a_file_is_no_directory(episode: Environment) -> None:
    assert "sums.py is a file" in episode.step(edit_action("sums.py/x.py", "", "a")).observation
    assert "is a directory" in episode.step(edit_action("tests", "", "a")).observation


ACTIONS = st.sampled_from(
    [
        SOLUTION,
        "list",
        "test",
        "nonsense",
        edit_action("new.py", "", "x = 1"),
        edit_action("new.py", "x = 1", "x = 2"),
        edit_action("sums.py", "values[0]", "values[1]"),
    ]
)


@given(st.lists(ACTIONS, max_size=5), st.lists(ACTIONS, max_size=4))
@settings(max_examples=25, deadline=None)
def test_episodes_are_functions_of_their_actions_and_forks_are_apart(before: list[str], after: list[str]) -> None:
    one, other = SUITE.make(), SUITE.make()
    one.reset(TASK)
    other.reset(TASK)
    for action in before:
        assert one.step(action) == other.step(action)
    snapshot = pickle.loads(pickle.dumps(one.snapshot()))
    fork, digest = one.fork(), one.digest()
    results = [fork.step(action) for action in after]
    assert one.digest() == digest == other.digest()
    other.restore(snapshot)
    assert [other.step(action) for action in after] == results
    assert other.digest() == fork.digest()
    assert other.state_key() == fork.state_key()


def test_a_change_that_is_taken_back_leaves_no_trace(episode: Environment) -> None:
    before = episode.state_key(), episode.process_reward()
    episode.step(SOLUTION)
    episode.step(edit_action("sums.py", "return x * 2", "return x * 3"))
    assert (episode.state_key(), episode.process_reward()) == before


def test_the_expert_goes_on_from_any_state(episode: Environment) -> None:
    assert episode.expert_action() == edit_action("sums.py", "3", "2")
    episode.step(edit_action("sums.py", "return x * 3", "return x * 4"))
    assert episode.expert_action() is None
    episode.step(edit_action("sums.py", "return x * 4", "return x * 2"))
    assert episode.expert_action() == "submit"


def test_the_expert_submits_a_repair_that_holds_the_faulty_text() -> None:
    edit = edit_action("sums.py", "x * 3", "x * 3 - x")
    episode = CodeEpisode(lambda task: replace(SUITE._begin(task), solution=lambda: [edit]), 12, 8000)
    episode.reset(TASK)
    assert episode.expert_action() == edit
    episode.step(edit)
    assert episode.expert_action() == "submit"


def test_an_unknown_or_changed_task_is_refused() -> None:
    with pytest.raises(AgentRLError, match="no task"):
        SUITE.make().reset(Task("code-none", "constant", "train", "0"))
    with pytest.raises(AgentRLError, match="another one"):
        SUITE.make().reset(Task(TASK.task_id, "constant", "train", "0"))


def test_foreign_snapshots_are_refused(episode: Environment) -> None:
    with pytest.raises(InfrastructureError):
        episode.restore({"a": 1})
    with pytest.raises(InfrastructureError):
        SUITE.make().step("list")
