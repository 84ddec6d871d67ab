"""Shared fixtures; the place of the real benchmark data is told by AGENTRL_DATA_DIR, set in this one spot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of real benchmark data; tests that need it are skipped with a reason where it is absent."""
    directory = Path(os.environ.get("AGENTRL_DATA_DIR", REPOSITORY.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no benchmark data at {directory}; set AGENTRL_DATA_DIR")
    return directory
