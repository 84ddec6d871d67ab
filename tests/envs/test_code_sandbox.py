"""The sandbox: what escapes it (nothing), what it costs, and what it says where it cannot work."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import wsgiref
from pathlib import Path

import pytest
from code_games import limits, small_suite, write_tree

from agentbench_rl.envs.code import sandbox as module
from agentbench_rl.envs.code.sandbox import Sandbox, bubblewrap_problem, overlay_works
from agentbench_rl.envs.code.testing import Tester, TestRun
from agentbench_rl.envs.code.tree import DirectoryBase, PathError, TextBase, Tree, checked_path, text_base
from agentbench_rl.types import AgentRLError, InfrastructureError

needs_bubblewrap = pytest.mark.skipif(bubblewrap_problem() is not None, reason=f"bubblewrap: {bubblewrap_problem()}")
needs_overlay = pytest.mark.skipif(not overlay_works(), reason="overlays need root and a kernel that offers them")


def run(tests: str, *, isolation: str = "bubblewrap", files: dict[str, str] | None = None, **changes: int) -> TestRun:
    tester = Tester(Sandbox(isolation, limits(**changes)))  # type: ignore[arg-type]
    tree = Tree(TextBase({"tests/test_it.py": tests, **(files or {})}))
    return tester.run(tree, {"tests/test_it.py": ()}, "plain")


def outcomes(run: TestRun) -> dict[str, bool]:
    return {result.test.partition("::")[2]: result.passed for result in run.results}


@needs_bubblewrap
def test_nothing_of_this_machine_is_in_reach(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    tests = f"""
import os, socket

def error(function, *arguments):
    try:
        function(*arguments)
    except Exception as caught:
        return type(caught).__name__

def test_files():
    assert error(open, {str(secret)!r}) == "FileNotFoundError"
    os.symlink({str(secret)!r}, "link")
    assert error(open, "link") == "FileNotFoundError"

def test_system_is_read_only():
    assert error(open, "/usr/bin/x", "w") in ("OSError", "PermissionError")

def test_network():
    assert error(socket.create_connection, ("127.0.0.1", 22), 1) in ("OSError", "ConnectionRefusedError")
    assert [name for _, name in socket.if_nameindex()] == ["lo"]

def test_no_rights():
    assert os.geteuid() != 0 or {os.geteuid()} != 0
    assert error(os.chroot, "/usr") == "PermissionError"

def test_no_environment():
    assert sorted(set(os.environ) - {{"PWD", "SHLVL", "_"}}) == [
        "HOME", "LC_ALL", "PATH", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
        "PYTHONUTF8", "TMPDIR"]

def test_the_tree_can_be_written():
    open("new", "w").write("x")
    open("/tmp/new", "w").write("x")
"""
    done = run(tests)
    assert outcomes(done) == dict.fromkeys(outcomes(done), True), [r for r in done.results if not r.passed]
    assert len(done.results) == 6


@needs_bubblewrap
def test_a_fork_bomb_is_limited_and_leaves_nothing() -> None:
    bomb = "import os, time\n\ndef test_bomb():\n    while True: os.fork()\n"
    before = len(os.listdir("/proc"))  # noqa: PTH208
    started = time.monotonic()
    assert outcomes(run(bomb, run_seconds=10)).get("test_bomb", False) is False
    assert time.monotonic() - started < 20
    assert len(os.listdir("/proc")) - before < 100  # noqa: PTH208


@pytest.mark.parametrize("isolation", ["none", pytest.param("bubblewrap", marks=needs_bubblewrap)])
def test_a_run_that_never_ends_is_stopped_at_its_deadline(isolation: str) -> None:
    tests = "import time\n\ndef test_fast():\n    pass\n\ndef test_slow():\n    time.sleep(60)\n"
    started = time.monotonic()
    done = run(tests, isolation=isolation, run_seconds=3)
    assert time.monotonic() - started < 20
    assert (done.late, outcomes(done)) == (True, {"test_fast": True})


def test_results_that_do_not_end_are_cut() -> None:
    tests = "".join(f"def test_{n}():\n    assert {n} == 'x' * 100\n\n" for n in range(40))
    done = run(tests, isolation="none", output_kb=1)
    assert done.cut
    assert not done.passed


def test_prints_cannot_pose_as_results() -> None:
    row = '{"test": "tests/test_it.py::test_a", "passed": true}'
    tests = (
        f"import sys, os\nprint({row!r})\nos.write(1, b'x')\n\ndef test_a():\n    print({row!r})\n    assert 1 == 2\n"
    )
    assert outcomes(run(tests, isolation="none")) == {"test_a": False}


@pytest.mark.parametrize("said", [b"nonsense}\n", b"{}\n", b'{"variant": 7, "test": 1}\n', b"no end of line"])
def test_what_is_written_to_open_files_is_neither_a_result_nor_a_fault(said: bytes) -> None:
    passed = b'{"variant": 0, "test": "tests/test_it.py::test_a", "passed": true}\n'
    write = (
        "import os\n\ndef write(said):\n    for file in range(3, 20):\n        try:\n            os.write(file, said)\n"
        "        except OSError:\n            pass\n"
    )
    tests = f"{write}\nwrite({passed!r})\nwrite({said!r})\n\ndef test_a():\n    write({passed!r})\n    os._exit(0)\n"
    assert not run(tests, isolation="none").passed
    in_test = f"{write}\ndef test_a():\n    write({said!r})\n    assert 1 == 2\n\ndef test_b():\n    pass\n"
    assert outcomes(run(in_test, isolation="none")) == {"test_a": False, "test_b": True}


@needs_bubblewrap
def test_what_ships_beside_the_interpreter_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = f"import os\n\ndef test_a():\n    assert os.listdir({str(Path(wsgiref.__file__).parent)!r}) == []\n"
    assert outcomes(run(tests)) == {"test_a": False}
    monkeypatch.setattr(module, "_PACKAGE", Path(wsgiref.__file__).parent.resolve())
    assert outcomes(run(tests)) == {"test_a": True}


def test_the_steps_and_values_of_a_failure_are_told() -> None:
    tests = "def test_a():\n    x = [3]\n    x.append(4)\n    assert x.pop() == 5\n"
    result = run(tests, isolation="none").results[0]
    assert (result.call, result.expected, result.got) == ("x.pop()", "5", "4")
    assert result.steps == ("x = [3]", "x.append(4)")


def test_addresses_and_hash_order_do_not_vary() -> None:
    tests = "def test_a():\n    assert {'a', 'b', 'c', 'd'} == object()\n"
    first, second = (run(tests, isolation="none").results[0] for _ in range(2))
    assert first == second
    assert "0x…" in (first.expected or "")


def test_without_bubblewrap_it_refuses_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    module.bubblewrap_problem.cache_clear()
    try:
        with pytest.raises(AgentRLError, match=r"no `bwrap`.*apt-get install bubblewrap.*isolation=none"):
            small_suite("bubblewrap")
    finally:
        module.bubblewrap_problem.cache_clear()


@needs_bubblewrap
def test_a_sandbox_that_does_not_start_is_a_fault_of_the_machinery(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = small_suite("bubblewrap")
    episode = suite.make()
    episode.reset(suite.tasks("train")[0])
    monkeypatch.setattr(module, "_TREE", "/proc/tree")
    with pytest.raises(InfrastructureError, match="does not start"):
        episode.step("test")


@pytest.mark.parametrize("isolation", ["none", pytest.param("bubblewrap", marks=needs_bubblewrap)])
@pytest.mark.parametrize("size", [1, 150], ids=["copied", "overlaid"])
def test_what_tests_do_to_the_tree_does_not_last(isolation: str, size: int) -> None:
    tests = "import os\n\ndef test_a():\n    assert os.path.exists('mark') == False\n    open('mark', 'w').close()\n"
    files = {f"pad/f{n}.txt": "x" for n in range(size)}
    tester = Tester(Sandbox(isolation, limits()))  # type: ignore[arg-type]
    base = TextBase({"tests/test_it.py": tests, **files})
    for change in ({}, {"a.py": "1"}, {"pad/f0.txt": "y"}):
        assert outcomes(tester.run(Tree(base, change), {"tests/test_it.py": ()}, "plain")) == {"test_a": True}


@pytest.mark.parametrize("size", [1, 150], ids=["copied", "overlaid"])
def test_the_history_of_a_checkout_is_hidden(tmp_path: Path, size: int) -> None:
    tests = (
        "import os\n\ndef test_a():\n    assert (os.path.exists('.git'), os.path.exists('a/f0.txt')) == (False, True)\n"
    )
    write_tree(tmp_path, {"test_it.py": tests, ".git/config": "x", **{f"a/f{n}.txt": "x" for n in range(size)}})
    tester = Tester(Sandbox("none", limits()))
    tree = Tree(DirectoryBase(tmp_path, "key"), {"a/new.txt": "y"})
    assert outcomes(tester.run(tree, {"test_it.py": ()}, "plain")) == {"test_a": True}


@pytest.mark.parametrize("path", ["x" * 300, "a/" * 600 + "b", "\ud800", ".git/config", "sub/.git/HEAD"])
def test_paths_that_no_file_can_have_are_refused(path: str) -> None:
    with pytest.raises(PathError):
        checked_path(path)


def test_the_sandbox_cleans_up() -> None:
    sandbox = Sandbox("none", limits())
    home = sandbox._home
    Tester(sandbox).run(Tree(TextBase({"test_a.py": "def test_a():\n    pass\n"})), {"test_a.py": ()}, "plain")
    assert [entry.name[:5] for entry in home.iterdir()] == ["base-"]
    sandbox.close()
    assert not home.exists()


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_holds_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    orphan, held = tmp_path / f"agentrl-code-{ended.pid}-x", tmp_path / f"agentrl-code-{os.getpid()}-y"
    for directory in (orphan, held):
        directory.mkdir()
    Sandbox("none", limits()).close()
    assert not orphan.exists()
    assert held.exists()


@needs_overlay
def test_the_fork_of_a_large_tree_is_quick(tmp_path: Path) -> None:
    root = tmp_path / "big"
    write_tree(root, {f"d{n % 20}/f{n}.py": "x = 1\n" * 50 for n in range(4000)})
    base = DirectoryBase(root, "key")
    sandbox = Sandbox("none", limits())
    started = time.perf_counter()
    shutil.copytree(root, tmp_path / "copy")
    copying = time.perf_counter() - started
    seconds = []
    for number in range(10):
        place = tmp_path / f"fork{number}"
        place.mkdir()
        started = time.perf_counter()
        prefix, _ = sandbox.fork(Tree(base, {"d1/f1.py": "changed"}), place)
        assert os.spawnvp(os.P_WAIT, prefix[0], [*prefix, "true"]) == 0
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < copying / 2
    assert (root / "d1/f1.py").read_text() != "changed"


def test_links_are_neither_followed_nor_loaded(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_tree(outside, {"secret.txt": "hidden"})
    root = tmp_path / "root"
    write_tree(root, {"a.py": "x"})
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    tree = Tree(DirectoryBase(root, "key"))
    assert tree.paths == ["a.py"]
    for path in ("file", "folder/secret.txt"):
        with pytest.raises(PathError, match="link"):
            tree.read(path)
        with pytest.raises(PathError, match="link"):
            tree.write(path, "x")
    with pytest.raises(AgentRLError, match="leads out"):
        text_base(root)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a.py": "x"})
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PathError, match="not a text"):
        Tree(DirectoryBase(tmp_path, "key")).read("b.bin")
    assert sorted(text_base(tmp_path).files) == ["a.py"]
