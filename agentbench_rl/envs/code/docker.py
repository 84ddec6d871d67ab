"""An instance in a container: the work tree is `/testbed` of its image, a snapshot is a commit of the container.

Grading follows the harness of SWE-bench: the test files are set to the base commit, the test patch is applied, the
tests run, and all of FAIL_TO_PASS and PASS_TO_PASS must pass.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from agentbench_rl.config.environment import DockerConfig
from agentbench_rl.envs.code.instances import Instance, passed_tests
from agentbench_rl.envs.code.tree import PathError
from agentbench_rl.types import AgentRLError, Ending, InfrastructureError

_TESTBED = "/testbed"
_START_SECONDS = 600
_CALL_SECONDS = 120
#: The environment that the images of SWE-bench prepare; other images do without.
_ACTIVATE = "source /opt/miniconda3/bin/activate testbed 2>/dev/null || true"
_SHOWN_LOG = 4000
#: Exit status of `docker exec` where nothing was executed.
_NOT_RUN = 125
#: Exit statuses of the scripts below, and their first part: `$1` must lie in the working directory.
_OUTSIDE, _ABSENT, _DIRECTORY = 93, 94, 95
_INSIDE = f'case "$(readlink -m -- "$1")" in "$(pwd -P)"/*) ;; *) exit {_OUTSIDE} ;; esac;'


def check_docker() -> None:
    """Raise AgentRLError when there is no Docker whose service answers."""
    if shutil.which("docker") is None:
        raise AgentRLError(
            "environment.data: these instances run in containers, and there is no `docker` on the PATH; install "
            "Docker, or give the rows a `directory` and a `python` to run them without"
        )
    try:
        done = subprocess.run(["docker", "version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AgentRLError(f"docker cannot be run ({error})") from error
    if done.returncode != 0:
        raise AgentRLError(f"docker's service does not answer ({done.stderr.strip()[:200]}); start it")


@dataclass(frozen=True, slots=True)
class ContainerSnapshot:
    """The image that a container was committed to, and the hash of its content."""

    image: str


class ContainerWorkspace:
    """The work tree of one running container; implements `Workspace`.

    images: the images that snapshots made, which the suite removes at its end.
    """

    def __init__(self, instance: Instance, settings: DockerConfig, images: list[str], image: str | None = None) -> None:
        self._instance, self._settings, self._images = instance, settings, images
        name = instance.instance_id.lower().replace("__", "_1776_")
        self._container = self._run_container(image or instance.image or settings.image.format(instance=name))
        self._closed = False

    @property
    def key(self) -> str:
        """Hash of the changes since the base commit, new files included."""
        changes = self._sh("git add -A -N . && git diff HEAD")
        return hashlib.sha256(changes.encode()).hexdigest()

    def paths(self) -> Sequence[str]:
        """Sorted paths of the files that version control knows or would add."""
        return sorted(set(self._sh("git ls-files --cached --others --exclude-standard").splitlines()))

    def read(self, path: str) -> str | None:
        """Text of a file, None where there is none; raises PathError for a way out of the tree, or no text."""
        done = self._exec(["sh", "-c", f'{_INSIDE} [ -f "$1" ] || exit {_ABSENT}; cat -- "$1"', "sh", path])
        if done.returncode == _ABSENT:
            return None
        try:
            return self._checked(done, path).decode()
        except UnicodeDecodeError:
            raise PathError(f"{path}: is not a text file") from None

    def write(self, path: str, text: str) -> None:
        """Change or add a file; raises PathError where that cannot be."""
        script = f'{_INSIDE} [ ! -d "$1" ] && mkdir -p -- "$(dirname -- "$1")" || exit {_DIRECTORY}; cat > "$1"'
        done = self._exec(["sh", "-c", script, "sh", path], text.encode("utf-8", "surrogatepass"))
        if done.returncode == _DIRECTORY:
            raise PathError(f"{path}: is a directory, or lies under a file")
        self._checked(done, path)

    def test(self, name: str | None) -> str:
        """Run the tests of a file, or the files that the repository's command takes."""
        if name is None:
            return "Name what to run: test PATH, a test file of the tree."
        return self._test_log([name])[-_SHOWN_LOG:]

    def share(self) -> None:
        """Too costly to know before the end."""

    def solved(self) -> bool:
        """Grade; the container is not the same afterwards."""
        files = " ".join(shlex.quote(path) for path in self._instance.test_files)
        commit = shlex.quote(self._instance.base_commit)
        self._sh(f"git checkout {commit} -- {files} 2>/dev/null || true")
        done = self._exec(["git", "apply", "-v", "-"], self._instance.test_patch.encode())
        if done.returncode != 0:
            reason = done.stderr.decode("utf-8", "replace").strip()[-300:]
            name = self._instance.instance_id
            raise InfrastructureError(f"{name}: its test patch does not apply: {reason}", Ending.GRADER_ERROR)
        log = self._test_log(self._instance.directives)
        return passed_tests(log, self._instance.repo) >= set(self._instance.graded)

    def snapshot(self) -> ContainerSnapshot:
        """Commit the container."""
        image = self._checked(self._docker(["commit", self._container], _START_SECONDS), "commit").decode().strip()
        self._images.append(image)
        return ContainerSnapshot(image)

    def restore(self, snapshot: object) -> None:
        """Start a container of the committed image in place of this one."""
        if not isinstance(snapshot, ContainerSnapshot):
            raise InfrastructureError(f"code: {type(snapshot).__name__} is no snapshot of a container")
        self.close()
        self._container, self._closed = self._run_container(snapshot.image), False

    def copy(self) -> ContainerWorkspace:
        """A second container, of a commit of this one."""
        return ContainerWorkspace(self._instance, self._settings, self._images, self.snapshot().image)

    def close(self) -> None:
        """Remove the container."""
        if not self._closed:
            self._closed = True
            subprocess.run(["docker", "rm", "--force", self._container], capture_output=True, timeout=120, check=False)

    def _run_container(self, image: str) -> str:
        limits = ["--memory", f"{self._settings.memory_mb}m", "--pids-limit", str(self._settings.processes)]
        command = ["run", "--detach", "--network", "none", *limits, "--workdir", _TESTBED, "--entrypoint", "", image]
        done = self._docker([*command, "sleep", "infinity"], _START_SECONDS)
        return self._checked(done, f"run {image}").decode().strip()

    def _test_log(self, names: Sequence[str]) -> str:
        """Output of the test command; a run that does not end, or kills its shell, has the log it got to."""
        command = f"{_ACTIVATE}; {self._instance.test_command} {' '.join(shlex.quote(name) for name in names)}"
        seconds = self._settings.run_seconds
        limited = ["timeout", "--signal=KILL", str(seconds), "bash", "-c", f"{command} 2>&1 | head -c 50000000; true"]
        return self._exec(limited, seconds=seconds + _CALL_SECONDS).stdout.decode("utf-8", "replace")

    def _sh(self, script: str) -> str:
        return self._checked(self._exec(["sh", "-c", script]), script).decode("utf-8", "replace")

    def _exec(
        self, command: Sequence[str], data: bytes = b"", seconds: int = _CALL_SECONDS
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the container; its exit status is the caller's matter."""
        inside = ["exec", "--interactive", "--workdir", _TESTBED, self._container, *command]
        done = self._docker(inside, seconds, data)
        if done.returncode == _NOT_RUN:
            raise InfrastructureError(f"docker exec: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
        return done

    def _checked(self, done: subprocess.CompletedProcess[bytes], what: str) -> bytes:
        if done.returncode == _OUTSIDE:
            raise PathError(f"{what}: leads out of the work tree")
        if done.returncode != 0:
            raise InfrastructureError(f"docker: {what[:80]}: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
        return done.stdout

    def _docker(self, command: Sequence[str], seconds: int, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(["docker", *command], input=data, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(f"docker {command[0]}: no answer in {seconds} s", Ending.TIMEOUT) from error
        except OSError as error:
            raise InfrastructureError(f"docker {command[0]}: {error}") from error


def remove_images(images: list[str]) -> None:
    """Remove the images that snapshots made."""
    if images:
        subprocess.run(["docker", "rmi", "--force", *images], capture_output=True, timeout=600, check=False)
        images.clear()
