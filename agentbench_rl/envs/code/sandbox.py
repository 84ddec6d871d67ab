"""Isolation of what an agent wrote: bubblewrap with a read-only system, no network, limits and deadlines.

A run sees the interpreter, its own copy of the work tree and nothing else of this machine. As root, the tests run as a
user without rights, so that the limit on processes holds; a large tree is forked by an overlay in a private mount
namespace where the kernel offers one, any other by copying. Nothing of a run outlives it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from agentbench_rl.config.environment import CodeLimits
from agentbench_rl.envs.code.tree import Base, DirectoryBase, Tree
from agentbench_rl.types import AgentRLError, InfrastructureError

_RUNNER = Path(__file__).with_name("runner.py")
_PACKAGE = Path(__file__).parents[2].resolve()
#: Where a sandboxed run finds its tree and the runner.
_TREE, _SCRIPT = "/tree", "/runner.py"
#: Copying fewer files than this takes less time than mounting an overlay.
_PREFIX = "agentrl-code-"
_OVERLAY_FROM_FILES = 100
_CHUNK = 1 << 16
#: Bubblewrap's own failures: it never got as far as to start the run.
_NOT_STARTED = ("bwrap: ", "setpriv: ", "unshare: ", "mount: ")
INSTALL = (
    "install it (Debian, Ubuntu: `apt-get install bubblewrap`; Fedora: `dnf install bubblewrap`), or set "
    "environment.isolation=none to run the code that agents write without isolation, with your rights on this machine"
)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run wrote to its standard output, and whether it was cut at a limit of time or output."""

    output: str
    late: bool
    cut: bool


def _remove_orphans() -> None:
    """Remove what sandboxes of killed processes left: a finalizer does not run after SIGKILL."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


class Sandbox:
    """Runs the test runner over work trees; one object may serve any number of episodes.

    Raises AgentRLError when bubblewrap is asked for and does not work here.
    """

    def __init__(self, isolation: Literal["bubblewrap", "none"], limits: CodeLimits) -> None:
        if isolation == "bubblewrap" and (problem := bubblewrap_problem()) is not None:
            raise AgentRLError(f"environment.isolation: bubblewrap does not work here ({problem}); {INSTALL}")
        self.isolated = isolation == "bubblewrap"
        self.limits = limits
        _remove_orphans()
        self._home = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._home, ignore_errors=True)

    def run(
        self, tree: Tree, request: str, python: str | None = None, *, site: bool = False, runs: int = 1
    ) -> Finished:
        """Run the runner with `request` on its standard input over a fork of `tree`.

        python: the interpreter (None: this one's, without installed packages unless `site`). runs: how many the
        request asks for; the limits of time and output are those of one.
        Raises InfrastructureError when the run cannot be started.
        """
        try:
            place = Path(tempfile.mkdtemp(dir=self._home))
            try:
                return self._run(tree, request, python, site, runs, place)
            finally:
                shutil.rmtree(place, ignore_errors=True)
        except OSError as error:
            raise InfrastructureError(f"code: the sandbox cannot be set up: {error}") from error

    def fork(self, tree: Tree, place: Path) -> tuple[list[str], Path]:
        """Prepare a fork of `tree` in `place`: (command prefix that mounts it, its directory)."""
        target = place / "tree"
        target.mkdir(mode=0o755)
        base = tree.base
        if len(base.paths) < _OVERLAY_FROM_FILES or not overlay_works():
            skip = shutil.ignore_patterns(".git", "__pycache__")
            shutil.copytree(self._base_directory(base), target, symlinks=True, dirs_exist_ok=True, ignore=skip)
            _write_files(target, tree.changes)
            _open_to_all(target)
            return [], target
        upper, work = place / "upper", place / "work"
        upper.mkdir()
        work.mkdir()
        _write_files(upper, tree.changes)
        _open_to_all(upper)
        if (self._base_directory(base) / ".git").exists():
            # A device 0:0 hides what lies below it: the history may hold the repair.
            os.mknod(upper / ".git", stat.S_IFCHR)
        options = f"lowerdir={self._base_directory(base)},upperdir={upper},workdir={work}"
        script = 'mount -t overlay overlay -o "$1" "$2" && shift 2 && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", options, str(target)], target

    def _run(self, tree: Tree, request: str, python: str | None, site: bool, runs: int, place: Path) -> Finished:
        prefix, directory = self.fork(tree, place)
        flags = ["-s", "-P", "-B"] if site or python else ["-s", "-P", "-B", "-S"]
        interpreter = python or (sys.executable if site else _bare_python())
        scratch = place / "tmp"
        scratch.mkdir()
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LC_ALL": "C.UTF-8"}
        environment |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        if python is None:
            environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if self.isolated:
            command = [*prefix, *_bubblewrap(directory, interpreter, self.limits.memory_mb), interpreter, *flags]
            return self._communicate([*command, _SCRIPT], None, environment, request, runs)
        environment |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
        command = [*prefix, interpreter, *flags, str(_RUNNER)]
        if prefix:
            # The mount appears after the start, so the command enters the directory itself.
            command = [
                *prefix,
                "sh",
                "-c",
                'cd "$1" && shift && exec "$@"',
                "sh",
                str(directory),
                *command[len(prefix) :],
            ]
        return self._communicate(command, directory, environment, request, runs)

    def _communicate(
        self, command: Sequence[str], directory: Path | None, environment: dict[str, str], request: str, runs: int
    ) -> Finished:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            finished, complaint = _exchange(process, request.encode(), self.limits, runs)
        finally:
            _kill(process)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        if complaint.startswith(_NOT_STARTED) and not finished.output:
            raise InfrastructureError(f"code: the sandbox does not start: {complaint.strip()[:300]}")
        return finished

    def _base_directory(self, base: Base) -> Path:
        if isinstance(base, DirectoryBase):
            return base.root
        directory = self._home / f"base-{base.key[:24]}"
        if not directory.is_dir():
            partial = Path(tempfile.mkdtemp(dir=self._home))
            _write_files(partial, base.files)
            _open_to_all(partial)
            partial.rename(directory)
        return directory


def _exchange(process: subprocess.Popen[bytes], request: bytes, limits: CodeLimits, runs: int) -> tuple[Finished, str]:
    """Hand over the request and read up to the limits; returns also the first part of standard error."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + limits.run_seconds * runs
    most = (limits.output_kb << 10) * runs
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(request)
        process.stdin.close()
    output, late, out = b"", False, process.stdout.fileno()
    while len(output) <= most:
        ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            late = True
            break
        chunk = os.read(out, _CHUNK)
        if not chunk:
            break
        output += chunk
    os.set_blocking(process.stderr.fileno(), False)
    complaint = process.stderr.read(_CHUNK) or b""
    finished = Finished(output[:most].decode("utf-8", "replace"), late, len(output) > most)
    return finished, complaint.decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the run's process group; in a sandbox its whole process namespace goes with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _write_files(directory: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink():
            file.unlink()
        file.write_bytes(text.encode("utf-8", "surrogatepass"))


def _open_to_all(directory: Path) -> None:
    """Let the user without rights write in a copy."""
    directory.chmod(0o777)
    for path in directory.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)


@cache
def _bare_python() -> str:
    """The interpreter behind a virtual environment: it starts sooner, and sees no installed package."""
    candidate = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(candidate.resolve()) if candidate.exists() else sys.executable


def _bubblewrap(directory: Path, interpreter: str, memory_mb: int) -> list[str]:
    """Command prefix: the system read-only and in part, a small /tmp, the tree, no network, no rights."""
    command = ["bwrap", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev"]
    command += ["--perms", "1777", "--size", str(memory_mb << 20), "--tmpfs", "/tmp", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        path = Path("/") / name
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    made: set[Path] = set()
    for prefix in _interpreter_directories(interpreter):
        parents = [parent for parent in reversed(prefix.parents) if parent != Path("/")]
        for parent in parents:
            if parent not in made and not parent.is_relative_to("/usr"):
                command += ["--perms", "0755", "--dir", str(parent)]
                made.add(parent)
        command += ["--ro-bind", str(prefix), str(prefix)]
    # What ships with the faultless libraries and their tests is hidden where it is installed beside the interpreter.
    if any(_PACKAGE.is_relative_to(seen) for seen in (Path("/usr"), *_interpreter_directories(interpreter))):
        command += ["--tmpfs", str(_PACKAGE)]
    command += ["--bind", str(directory), _TREE, "--ro-bind", str(_RUNNER), _SCRIPT, "--chdir", _TREE]
    if os.geteuid() != 0:
        return [*command, "--unshare-all", "--"]
    # A number of its own per process: the limit on processes counts all that a user runs.
    user = str(1_000_000 + os.getpid())
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--"]
    drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--inh-caps=-all"]
    return command + drop


@cache
def _interpreter_directories(interpreter: str) -> tuple[Path, ...]:
    """Directories outside /usr that an interpreter needs: its virtual environment and its installation."""
    bare = Path(interpreter)
    homes = {bare.parent.parent, bare.resolve().parent.parent}
    if interpreter in (sys.executable, _bare_python()):
        homes |= {Path(sys.base_prefix)}
    outside = sorted(home for home in homes if not home.is_relative_to("/usr"))
    return tuple(home for home in outside if not any(home != o and home.is_relative_to(o) for o in outside))


@cache
def bubblewrap_problem() -> str | None:
    """Why bubblewrap cannot be used here, or None."""
    needed = ["bwrap", "setpriv"] if os.geteuid() == 0 else ["bwrap"]
    for program in needed:
        if shutil.which(program) is None:
            return f"there is no `{program}` on the PATH"
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        command = [*_bubblewrap(Path(place), _bare_python(), 16), _bare_python(), "-S", "-c", "pass"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return None if done.returncode == 0 else done.stderr.strip()[:300] or f"exit status {done.returncode}"


@cache
def overlay_works() -> bool:
    """Whether this process may mount overlays (as root, on most file systems)."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as place:
        for name in ("lower", "upper", "work", "merged"):
            (Path(place) / name).mkdir()
        script = 'cd "$1" && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", place]
        try:
            return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False
