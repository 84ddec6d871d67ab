"""Events whose members are in two processes: the gradients add up to that of one process."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from agentbench_rl.config.loss import ClipCov, LossConfig, SetClip, TokenClip
from agentbench_rl.training.packing import row_batches
from agentbench_rl.types import AgentRLError
from tests.training.models import tiny_model
from tests.training.team import SIZES, step_gradients, team_rollouts, team_sequences, team_signals

LOSSES: list[LossConfig] = [
    SetClip(kl_coefficient=0.1, entropy_coefficient=0.02),
    SetClip(set_norm="none", len_norm="mean", reduction="token"),
    TokenClip(kl_coefficient=0.1, entropy_coefficient=0.02),
    TokenClip(aggregation="sequence_mean_token_mean", kl_coefficient=0.0),
]


def summed(numbers: torch.Tensor) -> torch.Tensor:
    """The sum over both processes."""
    numbers = numbers.clone()
    dist.all_reduce(numbers)
    return numbers


def gradients_of_rank(rank: int, store: Path) -> list[torch.Tensor]:
    """Of every loss the gradient of a step of which this process has every second response, added up over both."""
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    try:
        model, rollouts = tiny_model(), team_rollouts()
        signals = team_signals(model, rollouts)
        batches = {"policy": row_batches(team_sequences(rollouts, signals)[rank::2], 24)}
        found = [step_gradients({"policy": model}, batches, signals, loss, summed) for loss in LOSSES]
        assert [metrics.get("events") for _, metrics in found] == [len(SIZES), len(SIZES), None, None]
        return [summed(gradient["policy"]) for gradient, _ in found]
    finally:
        dist.destroy_process_group()


def test_two_processes_that_share_events_have_the_gradient_of_one(tmp_path: Path) -> None:
    model, rollouts = tiny_model(), team_rollouts()
    signals = team_signals(model, rollouts)
    batches = {"policy": row_batches(team_sequences(rollouts, signals), 4096)}
    expected = [step_gradients({"policy": model}, batches, signals, loss)[0]["policy"] for loss in LOSSES]
    other = get_context("fork").Process(target=gradients_of_rank, args=(1, tmp_path / "store"))
    other.start()
    try:
        found = gradients_of_rank(0, tmp_path / "store")
        other.join(60)
        assert other.exitcode == 0
    finally:
        other.kill()
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_a_loss_that_chooses_tokens_over_a_step_is_refused_in_several_processes() -> None:
    model, rollouts = tiny_model(), team_rollouts()
    signals = team_signals(model, rollouts)
    batches = {"policy": row_batches(team_sequences(rollouts, signals), 4096)}
    with pytest.raises(AgentRLError, match="clip_cov chooses among the tokens of a whole step"):
        step_gradients({"policy": model}, batches, signals, ClipCov(), lambda numbers: numbers.clone())
