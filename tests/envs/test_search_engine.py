"""Episodes of search: rewards, grammar, forks, snapshots and keys."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_data import PASSAGES, generated, one_question, play, write_data

from agentbench_rl.config.environment import SearchEnvironment
from agentbench_rl.envs.base import Environment
from agentbench_rl.envs.search.suite import open_source
from agentbench_rl.types import AgentRLError, InfrastructureError, Task

ACTIONS = (
    "<search> Mount Aran </search>",
    "<search> Borland capital </search>",
    "<search> zzz </search>",
    "nonsense",
    "<search></search>",
)


@pytest.fixture
def episode(tmp_path: Path) -> Environment:
    suite, task = one_question(tmp_path, top_k=2)
    environment = suite.make()
    environment.reset(task)
    return environment


def test_an_episode_from_question_to_answer(tmp_path: Path) -> None:
    suite, task = one_question(tmp_path, top_k=1)
    environment = suite.make()
    assert environment.reset(task).text == "Question: What is the capital of the country of Mount Aran?"
    assert environment.process_reward() == 0.0
    found = environment.step("I look. <search>Mount Aran</search>")
    assert found.observation == (
        "<information>Doc 1(Title: Mount Aran) Mount Aran is a mountain. It stands in Borland.</information>"
    )
    assert (found.reward, found.done, found.process_reward, found.tool_calls, found.valid) == (0.0, False, 0.5, 1, True)
    assert environment.step("<search> Borland </search>").process_reward == 1.0
    end = environment.step("<answer> The city of CESTIA. </answer>")
    assert (end.reward, end.done, end.success, end.tool_calls) == (1.0, True, True, 0)


@pytest.mark.parametrize(("reward", "paid"), [("em", 0.0), ("f1", 0.5)])
def test_partial_answers_are_paid_under_f1_and_never_a_success(tmp_path: Path, reward: str, paid: float) -> None:
    suite, task = one_question(tmp_path, reward=reward)
    environment = suite.make()
    environment.reset(task)
    end = environment.step("<answer> Cestia in Borland </answer>")
    assert (end.reward, end.done, end.success) == (paid, True, False)


def test_malformed_actions_are_explained_and_change_nothing_but_the_step(episode: Environment) -> None:
    key, digest = episode.state_key(), episode.digest()
    result = episode.step("search Mount Aran")
    assert not result.valid
    assert not result.done
    assert result.tool_calls == 0
    assert "<search> query </search>" in result.observation
    assert "<answer> text </answer>" in result.observation
    assert episode.state_key() == key
    assert episode.digest() != digest


def test_a_query_without_a_match_is_valid(episode: Environment) -> None:
    result = episode.step("<search> zzz </search>")
    assert result.valid
    assert result.observation == "<information>No passage matches this query.</information>"


def test_a_step_after_the_end_is_refused(episode: Environment) -> None:
    episode.step("<answer> x </answer>")
    for action in ("<answer> Cestia </answer>", "<search> Aran </search>", "nonsense"):
        with pytest.raises(InfrastructureError, match="over"):
            episode.step(action)
    assert episode.expert_action() is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=5), st.lists(st.sampled_from(ACTIONS), max_size=4))
def test_equal_actions_give_equal_states_and_forks_are_independent(before: list[str], after: list[str]) -> None:
    suite = generated({"train": 1})
    task = suite.tasks("train")[0]
    first, second = suite.make(), suite.make()
    first.reset(task)
    second.reset(task)
    second.step("<search> a </search>")
    second.reset(task)
    for action in before:
        assert first.step(action) == second.step(action)
    snapshot, digest = pickle.loads(pickle.dumps(first.snapshot())), first.digest()
    fork = first.fork()
    for action in after:
        fork.step(action)
    fork.step("<answer> x </answer>")
    assert first.digest() == second.digest() == digest
    results = [first.step(action) for action in after]
    third = suite.make()
    third.restore(snapshot)
    assert third.digest() == digest
    assert [third.step(action) for action in after] == results
    assert third.digest() == first.digest()


def test_the_order_of_searches_is_in_the_digest_and_not_in_the_key(tmp_path: Path) -> None:
    suite, task = one_question(tmp_path, top_k=1)
    keys, digests = set(), set()
    for queries in (("Mount", "capital"), ("capital", "Mount")):
        environment = suite.make()
        environment.reset(task)
        for query in queries:
            environment.step(f"<search>{query}</search>")
        keys.add(environment.state_key())
        digests.add(environment.digest())
    assert (len(keys), len(digests)) == (1, 2)


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "Aran " * 20_000, "漢字 🎈 \u202e\x00 Ünï" * 3_000, "\ud800", "<" * 100_000]
)
def test_huge_and_odd_actions_are_harmless(episode: Environment, text: str) -> None:
    assert not episode.step(text).valid
    assert episode.step(f"<search>{text}</search>").valid
    assert episode.step(f"<answer>{text}</answer>").done
    assert len(pickle.dumps(episode.snapshot())) < 2_000


def test_nothing_is_possible_before_the_first_reset() -> None:
    environment = generated({"train": 1}).make()
    with pytest.raises(InfrastructureError, match="reset must be called"):
        environment.step("x")
    with pytest.raises(InfrastructureError, match="reset must be called"):
        environment.fork()


def test_snapshots_of_others_and_unknown_tasks_are_refused(episode: Environment, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="no snapshot"):
        episode.restore("something")
    with pytest.raises(AgentRLError, match="no question 'nobody'"):
        episode.reset(Task("nobody", "bridge", "train", "0"))
    task = episode.snapshot().task  # type: ignore[attr-defined]
    with pytest.raises(AgentRLError, match="differs"):
        episode.reset(Task(task.task_id, task.task_type, task.split, "0" * 64))


def test_the_oracle_answers_even_when_a_title_does_not_find_its_passage(tmp_path: Path) -> None:
    decoys = [{"id": f"d{n}", "title": "Borland", "text": "Borland"} for n in range(3)]
    write_data(tmp_path, None, [*PASSAGES, *decoys])
    suite = open_source(SearchEnvironment(name="search", data=tmp_path, top_k=1), {"train": None})
    for kind in ("oracle", "scripted"):
        environment, result, _ = play(suite, suite.tasks("train")[0], kind)
        assert result is not None
        assert result.success
        assert environment.process_reward() == 0.5


def test_the_oracle_finds_passages_and_answers_in_files(tmp_path: Path) -> None:
    suite, task = one_question(tmp_path, top_k=1)
    for kind in ("oracle", "scripted"):
        environment, result, steps = play(suite, task, kind)
        assert result is not None
        assert result.success
        assert environment.process_reward() == 1.0
        assert steps == 3
    with pytest.raises(AgentRLError, match="scripted and oracle"):
        suite.demonstrator("planner", suite.make(), task, 0)
