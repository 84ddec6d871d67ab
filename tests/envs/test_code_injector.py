"""Injected faults: every kind, noticed by hidden tests, taken back by the expert; splits apart and lasting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from code_games import write_tree

from agentbench_rl.config.environment import FAULT_KINDS, CodeEnvironment, CodeGenerator
from agentbench_rl.envs.code.games import Fault, apply_fault, read_games
from agentbench_rl.envs.code.injector import graded_run, inject, library_projects, split_of, visible_part
from agentbench_rl.envs.code.issue import issue_text
from agentbench_rl.envs.code.library import library_files, library_names
from agentbench_rl.envs.code.mutations import Mutation, mutations, parses
from agentbench_rl.envs.code.suite import CodeSuite, open_games, open_source, solving_edit
from agentbench_rl.envs.code.testing import TestResult
from agentbench_rl.envs.code.tree import TextBase, Tree
from agentbench_rl.types import AgentRLError

ENVIRONMENT = CodeEnvironment(name="code", isolation="none", max_turns=8)
COUNTS = {"train": 9, "validation": 4, "test": 4}


@pytest.fixture(scope="module")
def suite() -> CodeSuite:
    return open_source(ENVIRONMENT, COUNTS)


def all_mutations() -> list[tuple[str, str, Mutation]]:
    sources = {name: library_files(name)[f"{name}.py"] for name in library_names()}
    return [(name, source, mutation) for name, source in sources.items() for mutation in mutations(source)]


MUTATIONS = all_mutations()


def test_all_kinds_occur_and_change_one_function_alone() -> None:
    assert {mutation.kind for _, _, mutation in MUTATIONS} == set(FAULT_KINDS)
    for _, source, mutation in MUTATIONS[::23]:
        changed = mutation.apply(source)
        assert changed != source
        if parses(changed):
            before, after = (
                {node.name: ast.dump(node) for node in ast.parse(text).body if hasattr(node, "name")}
                for text in (source, changed)
            )
            differing = {name for name in before if before[name] != after.get(name)}
            assert differing == {mutation.function.partition(".")[0]}


def test_the_expert_edit_takes_every_fault_back() -> None:
    from agentbench_rl.envs.code.actions import Edit, parse

    for _, source, mutation in MUTATIONS[::7]:
        fault = Fault("m.py", mutation.start, mutation.end, mutation.new)
        faulty = apply_fault(Tree(TextBase({"m.py": source})), fault).read("m.py") or ""
        call = parse(solving_edit(fault, source))
        assert isinstance(call, Edit)
        assert faulty.count(call.old) == 1
        assert faulty.replace(call.old, call.new) == source


def test_positions_count_characters_not_bytes() -> None:
    source = "def f(x):\n    return 'é' + g(x, 1)  # ü\n"
    changed = {mutation.apply(source) for mutation in mutations(source)}
    assert "def f(x):\n    return 'é' + g(1, x)  # ü\n" in changed
    assert "def f(x):\n    return 'é' - g(x, 1)  # ü\n" in changed


def test_the_libraries_pass_all_their_tests(suite: CodeSuite) -> None:
    projects = library_projects()
    assert len(projects) == len(library_names())
    for project in projects.values():
        assert graded_run(project, Tree(project.base), suite._tester).passed == set(project.graded)


def test_splits_share_no_function_and_no_content(suite: CodeSuite) -> None:
    hashes = [task.content_hash for split in suite.splits() for task in suite.tasks(split)]
    assert len(set(hashes)) == len(hashes) == sum(COUNTS.values())
    for split in suite.splits():
        for task in suite.tasks(split):
            game = suite._find(task)
            assert game.fault is not None
            project = suite._games.project(game)
            source = project.base.read(game.fault.path) or ""
            owners = {m.function for m in mutations(source) if (m.start, m.end) == (game.fault.start, game.fault.end)}
            assert {split_of(project.name, game.fault.path, owner) for owner in owners} == {split}


def test_every_split_has_functions_of_most_libraries() -> None:
    for split in ENVIRONMENT.splits:
        names = {name for name, _, m in MUTATIONS if split_of(name, f"{name}.py", m.function) == split}
        assert len(names) >= 8


def test_equal_seeds_give_equal_tasks_and_fewer_the_first_of_them(suite: CodeSuite) -> None:
    tester = suite._tester
    projects = library_projects()
    first = inject(projects, CodeGenerator(), "test", 3, tester)
    assert first == inject(projects, CodeGenerator(), "test", 5, tester)[:3]
    assert {game.task.task_id for game in first} <= {task.task_id for task in suite.tasks("test")}
    assert inject(projects, CodeGenerator(seed=1), "test", 3, tester) != first


def test_the_expert_wins(suite: CodeSuite) -> None:
    for split in suite.splits():
        for task in suite.tasks(split):
            episode = suite.make()
            observation = episode.reset(task).text
            start = episode.process_reward()
            assert start is not None
            assert 0 <= start < 1
            act, action = suite.demonstrator("scripted", episode, task, 0), None
            while (action := act(observation, action)) is not None:
                result = episode.step(action)
                observation = result.observation
                if result.done:
                    break
            assert result.success


def test_the_report_tells_what_was_seen_and_not_the_fault(suite: CodeSuite) -> None:
    for task in suite.tasks("train"):
        game = suite._find(task)
        assert ">>> " in game.issue
        assert "got: " in game.issue
        assert "def test_" not in game.issue
        assert game.fault is not None
        if len(game.fault.new) > 8:
            assert game.fault.new not in game.issue


def test_a_report_names_the_call_behind_a_caught_error() -> None:
    seen = TestResult("t", False, "error(parse, 'x')", "'ValueError'", "None")
    assert issue_text("lib", [seen]).endswith(">>> parse('x')\nexpected: raises ValueError\ngot: no error")


def test_exported_tasks_open_again(suite: CodeSuite, tmp_path: Path) -> None:
    tasks = [*suite.tasks("train")[:3], *suite.tasks("test")[:2]]
    suite.export(tasks, tmp_path)
    opened = open_games(ENVIRONMENT, tmp_path, ("train",))
    assert opened.tasks("train") == suite.tasks("train")[:3]
    one, other = suite.make(), opened.make()
    assert one.reset(tasks[0]) == other.reset(tasks[0])
    assert one.step("submit") == other.step("submit")
    assert open_games(ENVIRONMENT, tmp_path, None).splits() == ("train", "test")


@pytest.mark.parametrize("damage", ["{", "[]", '{"a": {}}'])
def test_damaged_tasks_are_refused(suite: CodeSuite, tmp_path: Path, damage: str) -> None:
    suite.export(suite.tasks("test"), tmp_path)
    (tmp_path / "projects.json").write_text(damage)
    with pytest.raises(AgentRLError, match="draw the panels anew"):
        read_games(tmp_path, None)


def test_a_changed_project_is_noticed(suite: CodeSuite, tmp_path: Path) -> None:
    suite.export(suite.tasks("test"), tmp_path)
    file = tmp_path / "projects.json"
    file.write_text(file.read_text().replace("return", "return  ", 1))
    with pytest.raises(AgentRLError, match="missing or changed"):
        read_games(tmp_path, None)


def test_kinds_can_be_chosen(suite: CodeSuite) -> None:
    chosen = CodeGenerator(kinds=("slice", "boolean"))
    games = inject(library_projects(), chosen, "train", 4, suite._tester)
    assert [game.task_type for game in games] == ["slice", "boolean"] * 2


def test_more_tasks_than_there_are_is_an_error(suite: CodeSuite) -> None:
    source = {"m.py": "def f(x):\n    return x\n", "tests/test_m.py": "def test_m():\n    assert 1 == 1\n"}
    from agentbench_rl.envs.code.injector import make_project

    project = make_project("m", source, suite._tester)
    with pytest.raises(AgentRLError, match="ask for fewer"):
        inject({project.key: project}, CodeGenerator(), "train", 1, suite._tester)


def test_a_third_of_the_tests_stays_visible() -> None:
    source = "import m\n\n\n" + "".join(f"def test_{n}():\n    assert {n}\n\n\n" for n in range(7))
    source += "class TestX:\n    @mark\n    def test_a(self):\n        pass\n\n    def test_b(self):\n        pass\n"
    shown = visible_part(source)
    assert [n.name for n in ast.walk(ast.parse(shown)) if isinstance(n, ast.FunctionDef)] == [
        "test_0",
        "test_3",
        "test_6",
        "test_a",
    ]


def test_faults_are_put_into_a_directory_of_libraries(tmp_path: Path) -> None:
    pytest.importorskip("pytest")
    source = "def biggest(values, least=0):\n    return max([least, *values])\n\n\ndef half(x):\n    return x // 2\n"
    tests = "import pytest\nfrom kit.tools import biggest, half\n\n\n"
    tests += "@pytest.mark.parametrize('n', [2, 4])\ndef test_half(n):\n    assert half(n) * 2 == n\n\n\n"
    tests += (
        "def test_biggest():\n    assert biggest([1, 5]) == 5\n\n\ndef test_least():\n    assert biggest([]) == 0\n"
    )
    write_tree(tmp_path / "kit-1.0", {"kit/__init__.py": "", "kit/tools.py": source, "tests/test_tools.py": tests})
    splits = {split_of("kit", "kit/tools.py", name) for name in ("biggest", "half")}
    suite = open_source(ENVIRONMENT.model_copy(update={"data": tmp_path}), dict.fromkeys(splits, 1))
    task = suite.tasks(min(splits))[0]
    episode = suite.make()
    report = episode.reset(task).text
    assert "assert" in report
    assert "return" not in report
    act = suite.demonstrator("scripted", episode, task, 0)
    action = act("", None)
    while action is not None and not (result := episode.step(action)).done:
        action = act(result.observation, action)
    assert result.success


def test_a_directory_without_libraries_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AgentRLError, match="no folder of it holds a library"):
        open_source(ENVIRONMENT.model_copy(update={"data": tmp_path}), {"train": 1})
