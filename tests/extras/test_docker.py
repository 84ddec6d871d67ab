"""Instances in containers of a real Docker: skipped where none answers.

The image is made of this machine's interpreter and programs (Linux), or of the one that AGENTRL_DOCKER_IMAGE names,
which needs Python, pytest, git and bash on its PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_image import add_testbed, import_base
from small_instance import FAULTY, GOLD, SOLUTION, TEST_PATCH, VISIBLE, git, row

from agentbench_rl.config.environment import CodeEnvironment, DockerConfig
from agentbench_rl.envs import contract
from agentbench_rl.envs.base import Environment
from agentbench_rl.envs.code.docker import LABEL, check_docker
from agentbench_rl.envs.code.suite import CodeSuite, open_source
from agentbench_rl.types import AgentRLError, InfrastructureError

BASE, IMAGE = "agentrl-test/base", "agentrl-test/sweb.eval.x86_64.sums_1776_sums-1:latest"
#: The settings of the instances; `{instance}` as in the images of SWE-bench.
DOCKER = {"image": "agentrl-test/sweb.eval.x86_64.{instance}:latest", "memory_mb": 512, "processes": 64}


def problem() -> str | None:
    """Why there is no Docker here, or None."""
    if os.environ.get("AGENTRL_DOCKER_IMAGE") is None and not (sys.platform == "linux" and shutil.which("ldd")):
        return "an image is made on Linux alone; name one in AGENTRL_DOCKER_IMAGE"
    try:
        check_docker()
    except AgentRLError as error:
        return str(error)
    return None


pytestmark = [pytest.mark.extras, pytest.mark.skipif((why := problem()) is not None, reason=str(why))]


def docker(*command: str) -> list[str]:
    return subprocess.run(["docker", *command], check=True, capture_output=True, text=True).stdout.split()


def left() -> list[str]:
    """Containers and images of this package, snapshots and all."""
    chosen = ["--all", "--quiet", "--filter", f"label={LABEL}"]
    return docker("container", "ls", *chosen) + docker("image", "ls", *chosen)


@pytest.fixture(scope="module")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base commit of an instance whose image was made."""
    testbed = tmp_path_factory.mktemp("testbed")
    (testbed / "tests").mkdir()
    files = {"sums.py": FAULTY, "tests/test_sums.py": VISIBLE, "conftest.py": "", ".gitignore": "*.log\n"}
    for path, text in files.items():
        (testbed / path).write_text(text)
    git(testbed, "init", "-q")
    git(testbed, "add", ".")
    git(testbed, "commit", "-qm", "base")
    base = os.environ.get("AGENTRL_DOCKER_IMAGE")
    if base is None:
        import_base(BASE)
    add_testbed(base or BASE, testbed, IMAGE)
    yield git(testbed, "rev-parse", "HEAD")
    docker("rmi", "--force", IMAGE, *([] if base else [BASE]))


@pytest.fixture
def rows(commit: str, tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(commit, test_command=None, patch=GOLD)))
    return path


def opened(rows: Path, **settings: Any) -> CodeSuite:
    environment = CodeEnvironment(
        name="code", isolation="none", data=rows, docker=DockerConfig(**{**DOCKER, **settings})
    )
    return open_source(environment, dict.fromkeys(environment.splits))


def begun(suite: CodeSuite) -> Environment:
    episode = suite.make()
    episode.reset(suite.tasks("test")[0])
    return episode


def written(path: str, text: str) -> str:
    return f"edit {path}\n<<<<\n====\n{text}\n>>>>"


@pytest.fixture
def episode(rows: Path) -> Iterator[Environment]:
    played = begun(opened(rows, run_seconds=20))
    yield played
    played.close()


def test_an_instance_is_read_repaired_and_graded(rows: Path) -> None:
    suite = opened(rows)
    episode = suite.make()
    text = episode.reset(suite.tasks("test")[0]).text
    assert text.endswith("Files: .gitignore conftest.py sums.py tests/test_sums.py")
    assert episode.step("read sums.py").observation == FAULTY.removesuffix("\n")
    assert episode.step("search x * 3").observation == "sums.py:2: return x * 3"
    assert "1 passed" in episode.step("test tests/test_sums.py").observation
    assert episode.step("test tests/test_none.py").observation == "There is no test file tests/test_none.py."
    assert episode.step(SOLUTION).observation == "Done."
    assert "return x * 2" in episode.step("read sums.py").observation
    result = episode.step("submit")
    assert (result.success, result.reward, result.done) == (True, 1.0, True)
    episode.close()
    assert left() == []


def test_without_a_repair_it_fails_and_with_that_of_the_row_it_does_not(rows: Path) -> None:
    suite = opened(rows)
    episode = begun(suite)
    assert not episode.step("submit").success
    episode.close()
    task = suite.tasks("test")[0]
    environment = CodeEnvironment(name="code", data=rows)
    assert contract.expert_actions(environment, suite, task)[1]
    assert left() == []


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "x = [bytearray(1 << 20) for _ in range(1 << 20)]",
        "print('x' * (1 << 30))",
        "import os\n    while True: os.fork()",
        "import os, signal\n    os.kill(-1, signal.SIGKILL)",
        "import subprocess\n    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n    assert False",
        "import shutil\n    shutil.rmtree('.git')",
        "import shutil\n    shutil.rmtree('/testbed', ignore_errors=True)",
    ],
    ids=["endless", "memory", "gigabyte", "forks", "kills", "daemon", "history", "tree"],
)
def test_what_tests_do_to_a_container_is_a_failure(rows: Path, body: str) -> None:
    episode = begun(opened(rows, run_seconds=20, memory_mb=256))
    begin = time.monotonic()
    assert episode.step(written("tests/test_bad.py", f"def test_bad():\n    {body}")).observation == "Done."
    result = episode.step("test tests/test_bad.py")
    assert not result.done
    assert time.monotonic() - begin < 60
    episode.step("list")
    episode.step("read sums.py")
    result = episode.step("submit")
    assert (result.done, result.success) == (True, False)
    episode.close()


def test_an_episode_goes_on_after_its_tests_failed_badly(episode: Environment) -> None:
    episode.step(written("tests/test_bad.py", "def test_bad():\n    x = [bytearray(1 << 20) for _ in range(1 << 20)]"))
    episode.step("test tests/test_bad.py")
    episode.step(written("tests/test_forks.py", "import os\ndef test_bad():\n    while True: os.fork()"))
    episode.step("test tests/test_forks.py")
    assert episode.step(SOLUTION).observation == "Done."
    assert episode.step("submit").success


def test_what_was_done_outside_the_tree_does_not_grade(episode: Environment) -> None:
    script = "import pytest, pathlib\ndef test_bad():\n    pathlib.Path(pytest.__file__).write_text('main = None')"
    episode.step(written("tests/test_bad.py", script))
    episode.step("test tests/test_bad.py")
    assert "test_first" not in episode.step("test tests/test_sums.py").observation
    episode.step(SOLUTION)
    assert episode.step("submit").success


def test_files_in_the_way_of_the_test_patch_are_replaced(commit: str, rows: Path) -> None:
    added = "diff --git a/tests/test_new.py b/tests/test_new.py\nnew file mode 100644\n--- /dev/null\n"
    added += "+++ b/tests/test_new.py\n@@ -0,0 +1,2 @@\n+def test_new():\n+    pass\n"
    passing = ["tests/test_sums.py::test_first", "tests/test_new.py::test_new"]
    rows.write_text(json.dumps(row(commit, test_command=None, test_patch=TEST_PATCH + added, PASS_TO_PASS=passing)))
    episode = begun(opened(rows))
    episode.step(written("tests/test_new.py", "def test_new():\n    assert False"))
    edited = "edit tests/test_sums.py\n<<<<\ndef test_first():\n====\ndef test_other():\n>>>>"
    assert episode.step(edited).observation == "Done."
    episode.step(SOLUTION)
    assert episode.step("submit").success
    episode.close()


def test_snapshots_and_forks_are_apart(rows: Path) -> None:
    suite = opened(rows)
    episode, other = begun(suite), suite.make()
    snapshot, before = episode.snapshot(), episode.state_key()
    episode.step(SOLUTION)
    repaired = episode.snapshot()
    fork = episode.fork()
    assert fork.state_key() == episode.state_key() != before
    fork.step(written("new.py", "x = 1"))
    assert fork.state_key() != episode.state_key()
    assert "new.py" in fork.step("list").observation
    assert "new.py" not in episode.step("list").observation
    other.restore(snapshot)
    assert other.state_key() == before
    assert not other.step("submit").success
    other.restore(repaired)
    assert other.step("submit").success
    for played in (episode, other, fork):
        played.close()
    assert len(left()) == 1  # the one moment that no image held
    del suite, episode, other, fork, played
    assert left() == []


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "link/passwd", ".git/config", "deep/../../x"])
def test_nothing_leads_out_of_the_tree(episode: Environment, path: str) -> None:
    episode.step(written("tests/test_link.py", "import os\ndef test_link():\n    os.symlink('/etc', 'link')"))
    episode.step("test tests/test_link.py")
    assert episode.step(f"read {path}").observation.startswith("Error:")
    assert episode.step(written(path, "x")).observation.startswith("Error:")


def test_any_name_and_any_text_can_be_edited(episode: Environment) -> None:
    for path in ("ü/новый файл.txt", "a'b\"c.txt", "-x", "$(id).txt"):
        assert episode.step(written(path, f"naïve 🦔 {path}")).observation == "Done."
        assert path in episode.step("list").observation.splitlines()
        assert episode.step(f"search naïve 🦔 {path}").observation == f"{path}:1: naïve 🦔 {path}"


def test_bad_actions_are_answered(episode: Environment) -> None:
    key = episode.state_key()
    for noise in ("search \0", "search \ud800", "test \ud800", f"search {'x' * 200_000}", f"test {'x' * 200_000}"):
        assert not episode.step(noise).success
        assert episode.state_key() == key


def test_an_image_that_is_not_there_or_holds_no_repository_is_a_fault(rows: Path) -> None:
    base = os.environ.get("AGENTRL_DOCKER_IMAGE", BASE)
    for image, message in (("agentrl-test/none:latest", "agentrl-test/none"), (base, "no repository")):
        suite = opened(rows, image=image)
        with pytest.raises(InfrastructureError, match=message):
            begun(suite)
    assert left() == []


#: Where tests run in the background, interrupts are ignored; the program is one that a user can interrupt.
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {path!r}
from pathlib import Path
from test_docker import *
suite = opened(Path({rows!r}))
episode = begun(suite)
episode.step(SOLUTION)
snapshot = episode.snapshot()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "stays"), [(signal.SIGINT, False), (signal.SIGKILL, True)])
def test_a_process_that_was_ended_leaves_nothing_for_long(rows: Path, number: signal.Signals, stays: bool) -> None:
    program = PROGRAM.format(path=sys.path, rows=str(rows))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.wait(60)
    assert bool(left()) == stays
    check_docker()
    assert left() == []


def test_it_keeps_the_contract(rows: Path) -> None:
    environment = CodeEnvironment(name="code", isolation="none", data=rows, docker=DockerConfig(**DOCKER), max_turns=8)
    suite = open_source(environment, contract.counts(environment, 1))
    task = suite.tasks("test")[0]
    actions, solved = contract.expert_actions(environment, suite, task)
    assert solved
    for check in contract.TASK_CHECKS:
        check(suite, task, actions)
    contract.check_export(environment, suite, task, actions)
