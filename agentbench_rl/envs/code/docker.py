"""Containers by the `docker` command: without network, with limits, and gone with the process that started them.

What goes wrong is told apart: a fault of Docker raises InfrastructureError, a script that fails inside is an answer.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process

from agentbench_rl.config.environment import DockerConfig
from agentbench_rl.types import AgentRLError, Ending, InfrastructureError

TESTBED = "/testbed"
#: Every container and every image that this package makes carries it: which process of which machine it belongs to.
LABEL = "agentbench_rl"
#: Exit statuses that a script of `shell` may choose, and the one that every other failure of it gets.
STATUSES, FAILED = range(93, 96), 96
_START_SECONDS = 600
_CALL_SECONDS = 120
#: What a run may print; the rest is lost.
_MOST_OUTPUT = 50_000_000
#: Says that it begins, and runs `$1` for at most `$2` seconds.
_LIMITED = 'echo; timeout --signal=KILL "$2" bash -c "{ $1; } 2>&1 | head -c $3"'


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit status of a script in a container, and what it printed."""

    status: int
    output: bytes

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output.decode("utf-8", "replace")


class Container:
    """A running container of an image; raises InfrastructureError where it cannot be started."""

    def __init__(self, image: str, settings: DockerConfig) -> None:
        self._name = f"agentrl-{os.getpid()}-{secrets.token_hex(8)}"
        #: Removes the container; idempotent, and called at the latest when the process ends.
        self.close = weakref.finalize(self, _remove_container, self._name)
        memory = f"{settings.memory_mb}m"
        limits = ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(settings.processes)]
        limits += ["--ulimit", f"fsize={settings.memory_mb << 20}", "--ulimit", "core=0", "--network", "none"]
        identity = ["--name", self._name, "--label", f"{LABEL}={_owner(os.getpid())}"]
        command = ["run", "--detach", *identity, *limits, "--entrypoint", "sleep", image, "infinity"]
        _checked(docker(command, _START_SECONDS), f"run {image}")

    def shell(self, script: str, *arguments: str, data: bytes = b"") -> Answer:
        """Run a script of `sh` in the testbed; `data` is its input. Its status is 0, one of STATUSES, or FAILED."""
        kept = "|".join(map(str, (0, *STATUSES)))
        end = f"status=$?; case $status in {kept}) exit $status ;; esac; exit {FAILED}"
        wrapped = f"(cd {TESTBED} || exit {FAILED}\n{script}\n); {end}"
        done = self._exec(["sh", "-c", wrapped, "sh", *arguments], _CALL_SECONDS, data)
        if done.returncode not in (0, *STATUSES, FAILED):
            raise InfrastructureError(f"docker exec: {_complaint(done) or f'exit status {done.returncode}'}")
        return Answer(done.returncode, done.stdout)

    def run(self, command: str, seconds: int) -> str:
        """What a command of `bash` prints in the testbed until it ends, or is ended: by its deadline, or for memory."""
        limited = ["bash", "-c", f"cd {TESTBED}; {_LIMITED}", "bash", command, str(seconds), str(_MOST_OUTPUT)]
        done = self._exec(limited, seconds + _CALL_SECONDS)
        if not done.stdout.startswith(b"\n"):
            raise InfrastructureError(f"docker exec: {_complaint(done) or f'exit status {done.returncode}'}")
        return done.stdout[1:].decode("utf-8", "replace")

    def restart(self) -> None:
        """End all processes, whatever they did to escape; files stay."""
        _checked(docker(["restart", "-t", "0", self._name], _CALL_SECONDS), "restart")

    def commit(self) -> str:
        """The id of an image with the files as they are; `remove_images` takes it away."""
        root = parent_process()
        owner = _owner(root.pid if root is not None and root.pid is not None else os.getpid())
        command = ["commit", "--change", f"LABEL {LABEL}={owner}", self._name]
        return _checked(docker(command, _START_SECONDS), "commit").decode().strip()

    def _exec(self, command: Sequence[str], seconds: int, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return docker(["exec", "--interactive", self._name, *command], seconds, data)


def docker(command: Sequence[str], seconds: int, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command of Docker; raises InfrastructureError where it cannot be run, or gives no answer in time."""
    try:
        return subprocess.run(["docker", *command], input=data, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"docker {command[0]}: no answer in {seconds} s", Ending.TIMEOUT) from error
    except OSError as error:
        raise InfrastructureError(f"docker {command[0]}: {error}") from error


def check_docker() -> None:
    """Raise AgentRLError when there is no Docker whose service answers; remove what killed processes left there."""
    if shutil.which("docker") is None:
        raise AgentRLError(
            "environment.data: these instances run in containers, and there is no `docker` on the PATH; install "
            "Docker, or give the rows a `directory` and a `python` to run them without"
        )
    try:
        done = docker(["version"], _CALL_SECONDS)
    except InfrastructureError as error:
        raise AgentRLError(f"docker cannot be used ({error})") from error
    if done.returncode != 0:
        raise AgentRLError(f"docker's service does not answer ({_complaint(done)}); start it")
    _remove_orphans()


def remove_images(images: list[str]) -> None:
    """Remove images that `commit` made, the last first: none goes while another one is based on it."""
    if images:
        with suppress(InfrastructureError):
            docker(["rmi", "--force", "--no-prune", *reversed(images)], _START_SECONDS)
        images.clear()


def _remove_container(name: str) -> None:
    with suppress(InfrastructureError):
        docker(["rm", "--force", "--volumes", name], _CALL_SECONDS)


def _remove_orphans() -> None:
    """Remove containers and images of processes of this machine that are no more: nothing runs after SIGKILL."""
    chosen = ["--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}"]
    shown = f'{{{{.Id}}}} {{{{index .Config.Labels "{LABEL}"}}}}'
    for kind in ("container", "image"):
        found = docker([kind, "ls", *chosen], _CALL_SECONDS).stdout.decode().split()
        if not found:
            continue
        lines = docker([kind, "inspect", "--format", shown, *found], _CALL_SECONDS).stdout.decode().splitlines()
        left = [identity for identity, _, owner in (line.partition(" ") for line in lines) if _is_gone(owner)]
        if kind == "image":
            remove_images(left[::-1])  # the newest are listed first
            continue
        for identity in left:
            _remove_container(identity)


def _owner(process: int) -> str:
    return f"{socket.gethostname()}/{process}"


def _is_gone(owner: str) -> bool:
    host, _, process = owner.rpartition("/")
    if host != socket.gethostname() or not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _checked(done: subprocess.CompletedProcess[bytes], what: str) -> bytes:
    if done.returncode != 0:
        raise InfrastructureError(f"docker {what}: {_complaint(done)}")
    return done.stdout


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode("utf-8", "replace").strip()[-300:]
