"""Shared fixtures; the place of the real benchmark data is told by AGENTRL_DATA_DIR, set in this one spot."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentbench_rl.stages.layout import Layout

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of real benchmark data; tests that need it are skipped with a reason where it is absent."""
    directory = Path(os.environ.get("AGENTRL_DATA_DIR", REPOSITORY.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no benchmark data at {directory}; set AGENTRL_DATA_DIR")
    return directory


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; tests that need it are skipped where it may not be mounted."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here; that needs root")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Results of the tiny experiment, made once by the real stages; read only."""
    from tiny_experiment import run_everything, tiny

    return run_everything(tiny(), tmp_path_factory.mktemp("trained") / "tiny")


@pytest.fixture
def trained_copy(trained: Layout, tmp_path: Path) -> Callable[[], Layout]:
    """Makes a writable copy of `trained` in `tmp_path / "results" / "tiny"`."""
    from agentbench_rl.stages.layout import Layout

    def copy() -> Layout:
        return Layout(shutil.copytree(trained.root, tmp_path / "results" / "tiny"))

    return copy
