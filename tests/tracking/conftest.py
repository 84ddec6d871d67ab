"""A migrated MLflow store: the migration takes ten seconds, so it happens once, and each test gets a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentbench_rl.tracking import mlflow as tracking

EXPERIMENT = "comparison"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("migrated")
    tracking.prepare(store, EXPERIMENT, store / "lock")
    return store


@pytest.fixture
def store(migrated: Path, tmp_path: Path) -> Path:
    shutil.copytree(migrated, tmp_path / "store")
    return tmp_path / "store"
