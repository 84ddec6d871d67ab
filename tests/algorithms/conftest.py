"""Worked numbers of the specification, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
