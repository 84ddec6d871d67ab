"""An instance in a container: the work tree is `/testbed` of its image, a snapshot is a commit of the container.

Grading follows the harness of SWE-bench: the changes are applied in a fresh container of the instance's image, the test
files are set to the base commit, the test patch is applied, the tests run, and all of FAIL_TO_PASS and PASS_TO_PASS
must pass. What was done outside the work tree, or to files that version control ignores, does not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentbench_rl.config.environment import DockerConfig
from agentbench_rl.envs.code.docker import STATUSES, TESTBED, Answer, Container
from agentbench_rl.envs.code.instances import Instance
from agentbench_rl.envs.code.logs import passed_tests
from agentbench_rl.envs.code.tree import Hit, PathError, checked_path
from agentbench_rl.types import Ending, InfrastructureError

#: The environment that the images of SWE-bench prepare; other images do without.
_ACTIVATE = "source /opt/miniconda3/bin/activate testbed 2>/dev/null || true"
_SHOWN_LOG = 4000
#: A summary of pytest or unittest with the seconds it took, which are no function of the actions.
_TIMED = re.compile(r"^=* *(.*\S) in \d+\.\d+ ?s\b.*$", re.MULTILINE)
#: Bytes of a file that is read, of a patch, and of what a search finds.
_MOST_TEXT, _MOST_PATCH, _MOST_FOUND = 4_000_000, 50_000_000, 1_000_000
_OUTSIDE, _ABSENT, _DIRECTORY = STATUSES
#: First part of scripts: `$1` must lie in the work tree.
_INSIDE = f'case "$(readlink -m -- "$1")" in "$(pwd -P)"/*) ;; *) exit {_OUTSIDE} ;; esac; '
#: Git works in a tree of another user only where it is told to.
_OWN = f"git config --global --add safe.directory {TESTBED}; git rev-parse --verify HEAD"
#: Stands for the content of a work tree whose version control was destroyed.
_RUINED = "ruined"


@dataclass(frozen=True, slots=True)
class ContainerSnapshot:
    """The image that holds the work tree, and the hash of its content."""

    image: str
    key: str


class ContainerWorkspace:
    """The work tree of one container, started when it is first needed; implements `Workspace`.

    images: those that commits made, which the suite removes at its end.
    """

    def __init__(self, instance: Instance, settings: DockerConfig, images: list[str]) -> None:
        self._instance, self._settings, self._images = instance, settings, images
        name = instance.instance_id.lower().replace("__", "_1776_")
        self._origin = instance.image or settings.image.format(instance=name)
        #: An image with the content as it is, the hash of the content, and the paths, where they are known.
        self._image: str | None = self._origin
        self._key: str | None = None
        self._paths: list[str] | None = None
        self._container: Container | None = None

    @property
    def key(self) -> str:
        """Hash of the files that version control knows or would add."""
        if self._key is None:
            answer = self._shell("git add --all && git write-tree")
            self._key = _RUINED if answer.status else answer.text.strip()
        return self._key

    def paths(self) -> Sequence[str]:
        """Sorted paths of the files that version control knows or would add."""
        if self._paths is None:
            answer = self._checked("git ls-files -z --cached --others --exclude-standard")
            self._paths = sorted(set(answer.text.split("\0")) - {""})
        return self._paths

    def read(self, path: str) -> str | None:
        """Text of a file, None where there is none; raises PathError for a way out of the tree, or no text."""
        script = f'{_INSIDE} [ -f "$1" ] || exit {_ABSENT}; head -c {_MOST_TEXT + 1} -- "$1"'
        answer = self._shell(script, path)
        if answer.status == _ABSENT:
            return None
        _refuse(answer, path)
        if len(answer.output) > _MOST_TEXT:
            raise PathError(f"{path}: is too large to be read")
        try:
            return answer.output.decode()
        except UnicodeDecodeError:
            raise PathError(f"{path}: is not a text file") from None

    def search(self, text: str) -> list[Hit]:
        """Places of a text, sorted by path and line; of very many the first."""
        if "\0" in text:
            return []
        script = f"git grep --untracked -z -n -I -F -f - | head -c {_MOST_FOUND}"
        found = self._shell(script, data=text.encode("utf-8", "surrogatepass")).text
        parts = [line.split("\0") for line in found.split("\n")]
        hits = [Hit(part[0], int(part[1]), part[2]) for part in parts if len(part) == 3]
        return sorted(hits, key=lambda hit: hit.path)

    def write(self, path: str, text: str) -> None:
        """Change or add a file; raises PathError where that cannot be."""
        script = f'{_INSIDE} [ ! -d "$1" ] && mkdir -p -- "$(dirname -- "$1")" || exit {_DIRECTORY}; cat > "$1"'
        self._forget()
        _refuse(self._shell(script, path, data=text.encode("utf-8", "surrogatepass")), path)

    def test(self, name: str | None) -> str:
        """Run a test file of the tree by the repository's command."""
        if name is None:
            return "Name what to run: test PATH, a test file of the tree."
        path = checked_path(name.partition("::")[0])
        if path not in self.paths():
            return f"There is no test file {path}."
        self._forget()
        container = self._running()
        log = self._run_tests(container, [name])
        container.restart()
        return _TIMED.sub(r"\1", log[-2 * _SHOWN_LOG :])[-_SHOWN_LOG:]

    def share(self) -> None:
        """Too costly to know before the end."""

    def solved(self) -> bool:
        """Whether all graded tests pass in a fresh container with the changes made here."""
        grader, head = self._start(self._origin)
        try:
            prepared = self._prepare_tests(grader, check="--check")
            if prepared.status:
                name, reason = self._instance.instance_id, prepared.text.strip()[-300:]
                raise InfrastructureError(f"{name}: its test files cannot be prepared: {reason}", Ending.GRADER_ERROR)
            script = f'git add --all && git diff --cached --binary "$1" | head -c {_MOST_PATCH}'
            changes = self._shell(script, head)
            if changes.status or len(changes.output) == _MOST_PATCH:
                return False
            if changes.output and grader.shell("git apply --whitespace=nowarn -", data=changes.output).status:
                return False
            if self._prepare_tests(grader).status:
                return False
            log = self._run_tests(grader, self._instance.directives)
        finally:
            grader.close()
        return passed_tests(log, self._instance.repo) >= set(self._instance.graded)

    def snapshot(self) -> ContainerSnapshot:
        """Commit the container, unless an image has its content."""
        key = self.key
        if self._image is None:
            self._image = self._running().commit()
            self._images.append(self._image)
        return ContainerSnapshot(self._image, key)

    def restore(self, snapshot: object) -> None:
        """Go on from a committed image in place of this container."""
        if not isinstance(snapshot, ContainerSnapshot):
            raise InfrastructureError(f"code: {type(snapshot).__name__} is no snapshot of a container")
        if snapshot.image != self._image:
            self.close()
            self._image, self._key, self._paths = snapshot.image, snapshot.key, None

    def copy(self) -> ContainerWorkspace:
        """A second container, of a commit of this one."""
        other = ContainerWorkspace(self._instance, self._settings, self._images)
        other.restore(self.snapshot())
        other._key, other._paths = self._key, self._paths
        return other

    def close(self) -> None:
        """Remove the container."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def _forget(self) -> None:
        """The content is about to change."""
        self._running()
        self._image = self._key = self._paths = None

    def _running(self) -> Container:
        if self._container is None:
            if self._image is None:
                raise InfrastructureError("code: the container of this work tree was closed")
            self._container, _ = self._start(self._image)
        return self._container

    def _start(self, image: str) -> tuple[Container, str]:
        """A new container; of the instance's image also the commit that its work tree is at."""
        container = Container(image, self._settings)
        if image != self._origin:
            return container, ""
        answer = container.shell(_OWN)
        if answer.status:
            raise InfrastructureError(f"{image}: its {TESTBED} is no repository of git, or it has no git")
        return container, answer.text.strip()

    def _shell(self, script: str, *arguments: str, data: bytes = b"") -> Answer:
        return self._running().shell(script, *arguments, data=data)

    def _checked(self, script: str) -> Answer:
        answer = self._shell(script)
        if answer.status:
            raise PathError("the work tree's version control is damaged")
        return answer

    def _prepare_tests(self, grader: Container, check: str = "") -> Answer:
        """Set the test files to the base commit and apply the test patch, or check whether it applies."""
        changed, added = self._instance.test_sources
        if changed:
            script = 'commit=$1; shift; git checkout "$commit" -- "$@" 2>&1'
            reset = grader.shell(script, self._instance.base_commit, *changed)
            if reset.status:
                return reset
        if added:
            grader.shell('rm -rf -- "$@"', *added)
        return grader.shell(f"git apply {check} - 2>&1", data=self._instance.test_patch.encode())

    def _run_tests(self, container: Container, names: Sequence[str]) -> str:
        """Output of the test command; a run that does not end, or kills its shell, has the log it got to."""
        return container.run(f"{_ACTIVATE}; {self._instance.test_line(names)}", self._settings.run_seconds)


def _refuse(answer: Answer, path: str) -> None:
    if answer.status == _OUTSIDE:
        raise PathError(f"{path}: leads out of the work tree")
    if answer.status:
        raise PathError(f"{path}: is a directory, lies under a file, or cannot be used")
