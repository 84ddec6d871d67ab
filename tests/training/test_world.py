"""Without a mesh of processes, or with more processes than GPUs, what needs them is refused."""

from __future__ import annotations

import pytest
import torch

from agentbench_rl.config import TrainingConfig
from agentbench_rl.policies.critic import Critic
from agentbench_rl.training.sharding import shard_critic, shard_policy
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


def test_weights_that_should_wait_in_the_computers_memory_need_torchrun() -> None:
    training = TrainingConfig(iterations=1, learning_rate=1e-3, cpu_offload=True)
    with pytest.raises(AgentRLError, match=r"training\.cpu_offload is a part of sharding: .* under torchrun"):
        shard_policy(torch.nn.Linear(2, 2), training, ALONE)
    with pytest.raises(AgentRLError, match=r"training\.cpu_offload is a part of sharding: .* under torchrun"):
        shard_critic(Critic(None, 2, torch.float32), training, ALONE)
