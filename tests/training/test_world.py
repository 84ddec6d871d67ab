"""The world that torchrun starts on a machine with too few GPUs."""

from __future__ import annotations

import pytest

from agentbench_rl.training.world import ALONE, current_world, open_world
from agentbench_rl.types import AgentRLError


@pytest.mark.parametrize(("gpus", "remedy"), [(1, "--nproc-per-node 1"), (0, "--nproc-per-node 1 and device: cpu")])
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, gpus: int, remedy: str) -> None:
    place = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    message = rf"torchrun started 2 processes on this machine, .* torch finds {gpus}; use {remedy}"
    with pytest.raises(AgentRLError, match=message), open_world("cuda"):
        pass
    assert current_world() is ALONE
