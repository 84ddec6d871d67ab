"""Instances in the columns of SWE-bench: rows, logs, containers under a fake Docker, checkouts without one."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from code_games import VISIBLE, limits, write_tree
from small_instance import FAULTY, GOLD, SOLUTION, TEST_PATCH, git, row

from agentbench_rl.config.environment import CodeEnvironment
from agentbench_rl.envs.code.instances import read_instances
from agentbench_rl.envs.code.logs import passed_tests
from agentbench_rl.envs.code.suite import CodeSuite, open_games, open_source
from agentbench_rl.envs.contract import expert_actions
from agentbench_rl.types import AgentRLError, Ending, InfrastructureError

#: A test of several parameters, of which one name is left, and one that is known to fail.
PARAMETERS = """+
+
+import pytest
+@pytest.mark.parametrize("x", ["a b", "a c"])
+def test_many(x): assert double(x) == x + x
+@pytest.mark.xfail
+def test_known(): assert double(3) == 7
"""
#: Containers are directories under $FAKE_DOCKER, which stand for /testbed; every call is logged.
FAKE_DOCKER = """#!/bin/sh
cd "$FAKE_DOCKER"
echo "$@" | tr '\\n' ' ' >> log
echo >> log
command=$1
shift
if [ -f broken ] && [ "$(cat broken)" = "$command" ]; then
    echo "docker: no space left on device" >&2
    exit 1
fi
case $command in
run)
    name=$3
    while [ $# -gt 2 ]; do shift; done
    cp -a "images/$(echo "$1" | tr /: ++)" $name ;;
commit) cp -a "$3" images/image$$; echo image$$ ;;
rm) rm -r $3 ;;
rmi) shift 2; cd images; rm -r "$@" ;;
exec)
    home=$PWD/$2
    shift 2
    program=$1
    script=$(echo "$3" | sed "s:/testbed:$home:g")
    shift 3
    HOME=$home/.git exec $program -c "$script" "$@" ;;
esac
"""
#: Runs test functions without pytest and logs as `pytest -rA` does.
RUN_TESTS = """
import runpy, sys, time
for path in sys.argv[1:]:
    for name, test in runpy.run_path(path).items():
        if name.startswith("test_"):
            try:
                test()
                print(f"PASSED {path}::{name}")
            except Exception as error:
                print(f"FAILED {path}::{name} - {error}")
print(f"===== all of them in {time.perf_counter():.4f}s =====")
"""


def checkout(root: Path) -> str:
    write_tree(root, {"sums.py": FAULTY, "tests/test_sums.py": VISIBLE, "run_tests.py": RUN_TESTS})
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "base")
    return git(root, "rev-parse", "HEAD")


def open_rows(path: Path, *rows: dict[str, Any]) -> CodeSuite:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = CodeEnvironment(name="code", isolation="none", data=path, limits=limits())
    return open_source(environment, {"train": None, "validation": None, "test": None})


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home of a fake Docker with the image of one instance."""
    home, programs = tmp_path / "docker", tmp_path / "bin"
    programs.mkdir()
    (home / "images").mkdir(parents=True)
    script = programs / "docker"
    script.write_text(FAKE_DOCKER)
    script.chmod(0o755)
    monkeypatch.setenv("FAKE_DOCKER", str(home))
    monkeypatch.setenv("PATH", f"{programs}:/usr/local/bin:/usr/bin:/bin")
    return home


@pytest.fixture
def contained(docker: Path, tmp_path: Path) -> CodeSuite:
    image = docker / "images/swebench+sweb.eval.x86_64.sums_1776_sums-1+latest"
    return open_rows(tmp_path / "rows.jsonl", row(checkout(image)))


def calls(docker: Path) -> list[str]:
    return (docker / "log").read_text().splitlines()


def test_a_repaired_container_is_graded_by_the_patched_tests(contained: CodeSuite, docker: Path) -> None:
    task = contained.tasks("test")[0]
    assert (task.task_id, task.task_type) == ("Sums__sums-1", "sums/sums")
    episode = contained.make()
    assert "double(3) gives 9" in episode.reset(task).text
    assert episode.process_reward() is None
    shown = episode.step("test tests/test_sums.py").observation
    assert shown.splitlines() == ["PASSED tests/test_sums.py::test_first", "all of them"]  # the seconds differ
    assert "return x * 3" in episode.step("read sums.py").observation
    assert episode.step("search values[").observation == "sums.py:6: return values[0]"
    episode.step(SOLUTION)
    result = episode.step("submit")
    assert (result.success, result.reward, result.done) == (True, 1.0, True)
    episode.close()
    episode.close()
    started, grader = (call for call in calls(docker) if call.startswith("run"))
    names = {call.split()[-1] for call in calls(docker) if call.startswith("rm ")}
    assert names == {call.split()[3] for call in (started, grader)}
    assert sorted(path.name for path in docker.iterdir()) == ["images", "log"]
    assert "--network none" in started
    assert "--memory 8192m --memory-swap 8192m --pids-limit 512" in started


def test_an_unrepaired_container_fails(contained: CodeSuite) -> None:
    episode = contained.make()
    episode.reset(contained.tasks("test")[0])
    result = episode.step("submit")
    assert (result.success, result.reward, result.done) == (False, 0.0, True)
    episode.close()


def test_snapshots_are_commits_and_forks_are_apart(contained: CodeSuite, docker: Path) -> None:
    episode, other = contained.make(), contained.make()
    episode.reset(contained.tasks("test")[0])
    snapshot, before = episode.snapshot(), episode.state_key()
    episode.step(SOLUTION)
    fork = episode.fork()
    assert fork.state_key() == episode.state_key() != before
    fork.step("edit new.py\n<<<<\n====\nx = 1\n>>>>")
    assert fork.state_key() != episode.state_key()
    other.restore(snapshot)
    assert other.state_key() == before
    assert not other.step("submit").success
    assert episode.step("submit").success
    for environment in (episode, other, fork):
        environment.close()
    assert len(list(docker.iterdir())) == 2


def test_images_of_snapshots_outlive_their_container_and_go_with_the_suite(docker: Path, tmp_path: Path) -> None:
    image = docker / "images/swebench+sweb.eval.x86_64.sums_1776_sums-1+latest"
    suite = open_rows(tmp_path / "rows.jsonl", row(checkout(image)))
    backbone = suite.make()
    backbone.reset(suite.tasks("test")[0])
    backbone.step(SOLUTION)
    snapshot, key = backbone.snapshot(), backbone.state_key()
    backbone.close()
    siblings = [suite.make() for _ in range(2)]
    for sibling in siblings:
        sibling.restore(snapshot)
        assert sibling.state_key() == key
        assert sibling.step("submit").success
        sibling.close()
    assert len(list((docker / "images").iterdir())) == 2
    del suite, backbone, sibling, siblings
    gc.collect()
    assert list((docker / "images").iterdir()) == [image]


def test_a_row_of_another_commit_is_a_fault_of_the_grader(docker: Path, tmp_path: Path) -> None:
    checkout(docker / "images/swebench+sweb.eval.x86_64.sums_1776_sums-1+latest")
    suite = open_rows(tmp_path / "rows.jsonl", row("0" * 40))
    episode = suite.make()
    episode.reset(suite.tasks("test")[0])
    episode.step(SOLUTION)
    with pytest.raises(InfrastructureError, match="Sums__sums-1: its test files cannot be prepared") as caught:
        episode.step("submit")
    assert caught.value.ending is Ending.GRADER_ERROR
    episode.close()


def test_paths_out_of_a_container_are_refused(contained: CodeSuite) -> None:
    episode = contained.make()
    episode.reset(contained.tasks("test")[0])
    for path in ("../x", "/etc/passwd"):
        assert not episode.step(f"read {path}").valid
    assert "is a directory" in episode.step("edit tests\n<<<<\n====\nx\n>>>>").observation
    episode.close()


def test_faults_of_docker_are_no_failures_of_the_agent(contained: CodeSuite, docker: Path) -> None:
    episode = contained.make()
    (docker / "broken").write_text("run")
    with pytest.raises(InfrastructureError, match="no space left"):
        episode.reset(contained.tasks("test")[0])
    (docker / "broken").unlink()
    episode.reset(contained.tasks("test")[0])
    (docker / "broken").write_text("exec")
    with pytest.raises(InfrastructureError) as caught:
        episode.step("submit")
    assert caught.value.ending in (Ending.ENV_ERROR, Ending.GRADER_ERROR)
    episode.close()


def test_exported_instances_open_again(contained: CodeSuite, tmp_path: Path) -> None:
    contained.export(contained.tasks("test"), tmp_path / "games")
    environment = CodeEnvironment(name="code", isolation="none")
    assert open_games(environment, tmp_path / "games", ("test",)).tasks("test") == contained.tasks("test")


def test_containers_need_no_bubblewrap(contained: CodeSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbench_rl.envs.code.sandbox.bubblewrap_problem", lambda: "there is none")
    environment = CodeEnvironment(name="code", data=tmp_path / "rows.jsonl")
    assert open_source(environment, {"test": None}).tasks("test") == contained.tasks("test")
    with pytest.raises(AgentRLError, match="bubblewrap"):
        open_source(CodeEnvironment(name="code"), {"test": 1})


def test_without_docker_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentRLError, match=r"no `docker`.*directory"):
        open_rows(tmp_path / "rows.jsonl", row("0"))


def test_an_instance_with_a_checkout_needs_no_container(tmp_path: Path) -> None:
    commit = checkout(tmp_path / "sums")
    suite = open_rows(tmp_path / "rows.jsonl", row(commit, directory="sums", python=sys.executable))
    task = suite.tasks("test")[0]
    episode = suite.make()
    episode.reset(task)
    assert episode.process_reward() == 0.5
    assert "test_double" not in episode.step("read tests/test_sums.py").observation
    assert episode.fork().step("submit").success is False
    assert episode.step(SOLUTION).process_reward == 1.0
    assert episode.step("submit").success
    assert git(tmp_path / "sums", "status", "--porcelain") == ""


@pytest.mark.parametrize("many", [["test_many[a"], ["test_many[a b]", "test_many[a c]"]])
def test_tests_of_a_checkout_are_named_as_logs_or_pytest_name_them(tmp_path: Path, many: list[str]) -> None:
    commit = checkout(tmp_path / "sums")
    patch = TEST_PATCH.replace("@@ -3,3 +3,7 @@", "@@ -3,3 +3,14 @@") + PARAMETERS
    tests = [f"tests/test_sums.py::{name}" for name in ("test_double", *many, "test_known")]
    rows = row(commit, directory="sums", test_patch=patch, FAIL_TO_PASS=tests)
    suite = open_rows(tmp_path / "rows.jsonl", rows)
    episode = suite.make()
    episode.reset(suite.tasks("test")[0])
    assert episode.process_reward() == 0.25
    episode.step(SOLUTION)
    assert episode.step("submit").success


def test_the_expert_makes_the_patch_of_a_row(tmp_path: Path) -> None:
    commit = checkout(tmp_path / "sums")
    suite = open_rows(tmp_path / "rows.jsonl", row(commit, directory="sums", patch=GOLD))
    task = suite.tasks("test")[0]
    environment = CodeEnvironment(name="code", data=tmp_path / "rows.jsonl")
    actions, solved = expert_actions(environment, suite, task)
    assert [action.split()[0] for action in actions] == ["read", "edit", "submit"]
    assert solved
    episode = suite.make()
    episode.reset(task)
    assert episode.expert_action() == actions[1]
    episode.step(actions[1])
    assert episode.expert_action() == "submit"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directory": "nowhere"}, "does not exist"),
        ({"directory": "sums", "test_patch": TEST_PATCH.replace("first([4", "last([4")}, "does not apply"),
        ({"directory": "sums", "base_commit": "0" * 40}, "differs from 000"),
        ({"FAIL_TO_PASS": "[]", "directory": "sums"}, "line 1: no row"),
        ({"PASS_TO_PASS": "{", "directory": "sums"}, "line 1: no row"),
        ({"PASS_TO_PASS": [1], "directory": "sums"}, "line 1: no row"),
        ({"test_patch": TEST_PATCH.replace("tests/", "../tests/")}, "line 1: no row .* may not leave it"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    commit = checkout(tmp_path / "sums")
    with pytest.raises(AgentRLError, match=message):
        open_rows(tmp_path / "rows.jsonl", row(commit, **change))


def test_a_changed_checkout_is_refused(tmp_path: Path) -> None:
    commit = checkout(tmp_path / "sums")
    (tmp_path / "sums/sums.py").write_text("")
    with pytest.raises(AgentRLError, match="1 file changed"):
        open_rows(tmp_path / "rows.jsonl", row(commit, directory="sums"))


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for text, message in (("", "0 instances"), ("{", "line 1"), ('{"instance_id": "a"}', "lacks repo")):
        path.write_text(text)
        with pytest.raises(AgentRLError, match=message):
            read_instances(path)
    path.write_text(2 * (json.dumps(row("0")) + "\n"))
    with pytest.raises(AgentRLError, match="1 of them twice"):
        read_instances(path)


def test_reports_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = "one\u2028two\x85three"
    path.write_text(json.dumps(row("0", problem_statement=text), ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_instances(path)[0].problem_statement == text


def test_logs_of_the_harness_are_read() -> None:
    log = (
        "PASSED t.py::a\nFAILED t.py::b - assert 1\nXFAIL t.py::c\nt.py::d PASSED\nERROR t.py::e\nPASSED t.py::f[x-1]\n"
    )
    assert passed_tests(log, "pallets/flask") == {"t.py::a", "t.py::c", "t.py::d", "t.py::f[x-1]"}
    coloured = "\x1b[1m\x1b[32mPASSED\x1b[0m t.py::\x1b[1mf[5min]\x1b[0m\n"
    assert passed_tests(coloured, "pydata/xarray") == {"t.py::f[5min]"}
    django = "test_a (m.T) ... ok\ntest_b (m.T) ... FAIL\ntest_c (m.T) ... noise\nok\ntest_d (m.T) ... skipped 'x'\n"
    assert passed_tests(django, "django/django") == {"test_a (m.T)", "test_c (m.T)"}
    sympy = "test_a ok\ntest_b F\ntest_c E\n"
    assert passed_tests(sympy, "sympy/sympy") == {"test_a"}


def test_django_is_given_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    paths = ("tests/auth/test_x.py", "tests/auth/urls.py", "tests/auth/tests/x.txt")
    patch = "".join(f"diff --git a/{path} b/{path}\n" for path in paths)
    path.write_text(json.dumps(row("0", repo="django/django", test_patch=patch, test_command=None)))
    instance = read_instances(path)[0]
    assert instance.directives == ["tests/auth/test_x.py"]
    assert instance.test_line(instance.directives).startswith("./tests/runtests.py")
    assert instance.test_line(instance.directives).endswith(" auth.test_x")
