"""Source distributions of small libraries that carry their tests, at pinned versions, checked and unpacked."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentbench_rl.envs.download import check_sha256
from agentbench_rl.types import AgentRLError

#: Name → (version, SHA-256 of the source distribution).
LIBRARIES: Mapping[str, tuple[str, str]] = {
    "toolz": ("1.2.0", "9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490"),
    "cachetools": ("8.0.2", "30ac523adfc118b51d2b2e7bad8a0ddb31370dfe2700c7f10ca224f36ccf81e0"),
    "tinydb": ("4.9.0", "6928b1fa785186bda7952a0ba05aaeedc883ede565ca9c7d608de44e5e75de70"),
    "boltons": ("26.2.0", "d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c"),
}
_TIMEOUT_SECONDS = 300


def fetch(destination: Path, libraries: Mapping[str, tuple[str, str]] = LIBRARIES) -> list[Path]:
    """Place each library in `destination/NAME-VERSION`; what is there already is kept.

    Raises AgentRLError when a download fails, or a file is not the one that is pinned.
    """
    destination.mkdir(parents=True, exist_ok=True)
    placed = []
    for name, (version, digest) in libraries.items():
        target = destination / f"{name}-{version}"
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=destination) as scratch:
                archive = _download(name, version, Path(scratch))
                check_sha256(archive, digest)
                _unpack(archive, Path(scratch) / "tree", target)
        placed.append(target)
    return placed


def _download(name: str, version: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    command += ["--dest", str(scratch), f"{name}=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AgentRLError(f"{name} {version}: pip cannot be run ({error}); call again") from error
    archives = list(scratch.glob("*.tar.gz"))
    if len(archives) != 1:
        reason = (done.stderr.strip().splitlines() or ["nothing came"])[-1]
        raise AgentRLError(
            f"{name} {version}: pip downloads no source distribution ({reason[:300]}). Call again, or download "
            f"{name}-{version}.tar.gz elsewhere and unpack it to {scratch.parent / f'{name}-{version}'}"
        )
    return archives[0]


def _unpack(archive: Path, scratch: Path, target: Path) -> None:
    """Unpack the one folder of an archive; `target` appears when all is there."""
    try:
        with tarfile.open(archive) as bundle:
            bundle.extractall(scratch, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise AgentRLError(f"{archive.name}: cannot be unpacked ({error}); call again") from error
    folders = list(scratch.iterdir())
    if len(folders) != 1:
        raise AgentRLError(f"{archive.name}: holds {len(folders)} folders instead of one; it is no source distribution")
    folders[0].rename(target)
