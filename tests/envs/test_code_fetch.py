"""Fetching libraries: pinned, checked, unpacked; told apart when they fail."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentbench_rl.envs.code import fetch as module
from agentbench_rl.envs.code.fetch import LIBRARIES, fetch
from agentbench_rl.types import AgentRLError


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            bundle.addfile(info, io.BytesIO(b"x"))
    return buffer.getvalue()


def served(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[list[str]]:
    """Let pip "download" this content; returns the commands it is called with."""
    commands = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if content is not None:
            (Path(command[command.index("--dest") + 1]) / "lib-1.0.tar.gz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0 if content else 1, "", "ERROR: no matching distribution")

    monkeypatch.setattr(module.subprocess, "run", run)
    return commands


def pins(content: bytes) -> dict[str, tuple[str, str]]:
    return {"lib": ("1.0", hashlib.sha256(content).hexdigest())}


def test_a_library_is_placed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive("lib-1.0/lib.py", "lib-1.0/tests/test_lib.py")
    commands = served(monkeypatch, content)
    for _ in range(2):
        assert fetch(tmp_path / "data", pins(content)) == [tmp_path / "data/lib-1.0"]
    assert len(commands) == 1
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "lib==1.0" in commands[0]
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["lib-1.0"]
    assert (tmp_path / "data/lib-1.0/tests/test_lib.py").is_file()


@pytest.mark.parametrize(
    ("content", "pinned", "message"),
    [
        (None, b"", "no matching distribution"),
        (archive("lib-1.0/a"), b"other", "expected"),
        (b"no archive", b"no archive", "cannot be unpacked"),
        (archive("a/a", "b/b"), archive("a/a", "b/b"), "2 folders"),
        (archive("../escape"), archive("../escape"), "cannot be unpacked"),
    ],
    ids=["nothing", "replaced", "damaged", "folders", "escape"],
)
def test_what_goes_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, pinned: bytes, message: str
) -> None:
    served(monkeypatch, content)
    with pytest.raises(AgentRLError, match=message):
        fetch(tmp_path / "data", pins(pinned))
    assert not list((tmp_path / "data").iterdir())
    assert not (tmp_path / "escape").exists()


def test_all_libraries_are_pinned() -> None:
    assert all(len(digest) == 64 and version[0].isdigit() for version, digest in LIBRARIES.values())
