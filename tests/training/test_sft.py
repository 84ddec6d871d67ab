"""Behaviour cloning: masked loss, exact number of steps, schedule, determinism, refused demonstrations, processes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from agentbench_rl.config import SftConfig
from agentbench_rl.training.sequences import Response, Sequence
from agentbench_rl.training.sft import behaviour_clone, schedule
from agentbench_rl.training.sharding import full_weights, shard_policy
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import AgentRLError
from tests.training.models import tiny_model
from tests.training.ranks import in_processes
from tests.training.updates import TRAINING

SFT = SftConfig(steps=30, batch_tokens=128, learning_rate=1e-2, warmup_steps=5)


Cloned = tuple[list[dict[str, float]], dict[str, torch.Tensor]]


def demonstrations(count: int = 12) -> list[Sequence]:
    """The first response repeats the prompt's token; the second, a failed action, is masked out."""
    rng = np.random.default_rng(0)
    return [
        Sequence(np.array([token, token, token, 7, *rng.integers(0, 60, 4)]), (Response(f"d{index}", 1, 3),))
        for index, token in enumerate(rng.integers(10, 60, count))
    ]


def test_cloning_learns_the_trained_tokens_in_exactly_that_many_steps() -> None:
    steps: list[int] = []
    rates: list[float] = []

    def on_step(step: int, metrics: dict[str, float]) -> None:
        steps.append(step)
        rates.append(metrics["learning_rate"])

    result = behaviour_clone(tiny_model(dtype=torch.float32), demonstrations(), SFT, on_step)
    assert steps == list(range(30))
    assert result["last_loss"] < result["first_loss"] / 2
    assert max(rates) == pytest.approx(SFT.learning_rate)


def test_tokens_after_the_trained_ones_carry_no_loss() -> None:
    losses = []
    for last in (3, 44):
        sequence = Sequence(np.array([1, 2, 5, 9, last]), (Response("a", 1, 2),))
        model = tiny_model()
        metrics = behaviour_clone(model, [sequence], SFT.model_copy(update={"steps": 2}))
        losses.append((metrics["first_loss"], metrics["last_loss"], metrics["trained_tokens"]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    assert losses[0][2] == 2


def test_equal_inputs_give_equal_weights_and_another_seed_does_not() -> None:
    results = []
    for seed in (0, 0, 1):
        model = tiny_model(dtype=torch.float32)
        small = {"seed": seed, "batch_tokens": 32, "steps": 5}
        behaviour_clone(model, demonstrations(), SFT.model_copy(update=small))
        results.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_schedule_warms_up_to_one_and_decays_to_a_tenth() -> None:
    shares = [schedule(step, 100, 10) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert shares[9] == shares[10] == 1.0
    assert shares[-1] == pytest.approx(0.1)
    assert all(left > right for left, right in pairwise(shares[10:]))


@pytest.mark.parametrize("steps", [1, 3, 10, 11])
def test_the_schedule_of_a_run_that_ends_in_its_warm_up_is_defined(steps: int) -> None:
    assert all(0 < schedule(step, steps, 10) <= 1 for step in range(steps))


def test_no_trained_token_is_an_error_unless_there_are_no_steps() -> None:
    masked = [Sequence(np.arange(4), (Response("a", 2, 2),))]
    with pytest.raises(AgentRLError, match="no demonstration has a trained token"):
        behaviour_clone(tiny_model(), masked, SFT)
    assert behaviour_clone(tiny_model(), masked, SFT.model_copy(update={"steps": 0})) == {"optimizer_steps": 0.0}


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[3] = np.inf
    with pytest.raises(AgentRLError, match="step 0: loss nan"):
        behaviour_clone(model, demonstrations(), SFT)


def cloned(world: World, sft: SftConfig) -> Cloned:
    """Metrics of every step, and the weights (of the first process), of sequences of 4 to 28 tokens."""
    model = tiny_model("tied")
    shard_policy(model, TRAINING, world)
    rows = enumerate(demonstrations(9))
    sequences = [Sequence(np.resize(one.token_ids, 4 + 3 * place), one.responses) for place, one in rows]
    lines: list[dict[str, float]] = []
    behaviour_clone(model, sequences, sft, lambda _, metrics: lines.append(metrics), world)
    weights = full_weights(model, world)
    if not world.leads:
        world.told()
    return lines, weights


def test_two_processes_clone_what_one_does() -> None:
    """Batches of one sequence leave a process without any."""
    small = SFT.model_copy(update={"steps": 8, "batch_tokens": 40, "warmup_steps": 2})
    (lines, weights), (told, none) = in_processes(2, cloned, small)
    expected, alone = cloned(ALONE, small)
    assert told == lines
    assert none == {}
    for ours, theirs in zip(lines, expected, strict=True):
        assert ours | {"processed_tokens": 0} == pytest.approx(theirs | {"processed_tokens": 0}, rel=1e-9, abs=1e-10)
    torch.testing.assert_close(weights, alone, atol=1e-10, rtol=1e-10)
