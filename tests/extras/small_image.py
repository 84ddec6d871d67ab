"""A small image for Docker without any registry: Python, pytest, git and a shell, made of this machine's own files.

It has the layout of SWE-bench's images: an environment `testbed` under /opt/miniconda3 and a repository at /testbed.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib.util import find_spec
from pathlib import Path

_PROGRAMS = (
    *(
        "sh",
        "bash",
        "git",
        "cat",
        "dirname",
        "head",
        "ls",
        "mkdir",
        "readlink",
        "rm",
        "sleep",
        "timeout",
        "env",
        "sort",
    ),
    *("kill", "id", "touch", "find"),
)
_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_LEFT_OUT = re.compile(
    r"__pycache__|python3[^/]*/(site|dist)-packages|/(test|tests|idlelib|tkinter|lib2to3|ensurepip|config-.*)(/|$)"
)
_HOME = "opt/miniconda3"
_BIN = f"{_HOME}/envs/testbed/bin"
_ACTIVATE = f"export PATH=/{_BIN}:$PATH PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1\n"


def import_base(name: str) -> None:
    """Make an image of this machine's interpreter and programs."""
    command = ["docker", "import", "--change", "ENV PATH=/usr/bin:/bin", "-", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with tarfile.open(fileobj=process.stdin, mode="w|", dereference=True) as archive:
        _fill(archive)
    process.stdin.close()
    if process.wait():
        raise RuntimeError("docker import failed")


def add_testbed(base: str, testbed: Path, name: str) -> None:
    """Make an image of another one and a repository."""
    container = _docker("create", base, "sleep")
    try:
        _docker("cp", f"{testbed}/.", f"{container}:/testbed")
        _docker("commit", container, name)
    finally:
        _docker("rm", container)


def _fill(archive: tarfile.TarFile) -> None:
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}").resolve()
    library = Path(sysconfig.get_path("stdlib"))
    programs = {f"usr/bin/{name}": Path(found).resolve() for name in _PROGRAMS if (found := shutil.which(name))}
    extensions = sorted(library.glob("lib-dynload/*.so"))
    for path, program in programs.items():
        archive.add(program, path)
    for needed in sorted({*_libraries([python, *programs.values(), *extensions]), str(python)}):
        archive.add(needed, needed.lstrip("/"))
    archive.add(library, str(library).lstrip("/"), filter=_kept)
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            place = origin.parent if origin.name == "__init__.py" else origin
            for found in (place, *place.parent.glob(f"{package}-*.dist-info")):
                archive.add(found, f"opt/site/{found.name}", filter=_kept)
    _text(archive, "bin/sh", None, "/usr/bin/sh")
    _text(archive, f"{_BIN}/python", None, str(python))
    _text(archive, f"{_BIN}/pytest", '#!/bin/sh\nexec python -m pytest "$@"\n')
    _text(archive, f"{_HOME}/bin/activate", _ACTIVATE)
    _text(archive, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    for directory in ("tmp", "root"):
        entry = tarfile.TarInfo(directory)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(entry)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _LEFT_OUT.search(entry.name) else entry


def _libraries(files: list[Path]) -> set[str]:
    """The shared libraries that programs are linked with, the loader included."""
    found = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(?:=> |^\s+)(/\S+)", found, re.MULTILINE))


def _text(archive: tarfile.TarFile, path: str, text: str | None, link: str = "") -> None:
    entry = tarfile.TarInfo(path)
    if text is None:
        entry.type, entry.linkname = tarfile.SYMTYPE, link
        archive.addfile(entry)
        return
    data = text.encode()
    entry.size, entry.mode = len(data), 0o755
    archive.addfile(entry, io.BytesIO(data))


def _docker(*command: str) -> str:
    return subprocess.run(["docker", *command], check=True, capture_output=True, text=True).stdout.strip()
