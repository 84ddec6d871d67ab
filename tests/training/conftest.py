"""One thread and deterministic kernels for all training tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _deterministic() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
