"""Trainer states: round trip, equal bytes, damaged files, another model's state."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from agentbench_rl.training.checkpoint import (
    COUNTERS,
    TENSORS,
    TrainerState,
    load_trainer_state,
    make_optimizer,
    optimizer_moments,
    save_trainer_state,
    trained_parameters,
)
from agentbench_rl.types import AgentRLError
from tests.training.models import tiny_model

STATE = TrainerState(3, 2, 1, {"exp_avg.b": torch.arange(6.0).reshape(2, 3), "exp_avg.a": torch.ones(1)})


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    save_trainer_state(tmp_path, STATE)
    loaded = load_trainer_state(tmp_path)
    assert (loaded.steps, loaded.skipped, loaded.consecutive_skips) == (3, 2, 1)
    assert loaded.moments.keys() == STATE.moments.keys()
    assert all(torch.equal(loaded.moments[name], value) for name, value in STATE.moments.items())


def test_a_state_before_the_first_step_comes_back_too(tmp_path: Path) -> None:
    save_trainer_state(tmp_path, TrainerState())
    assert load_trainer_state(tmp_path) == TrainerState()


def test_equal_states_give_equal_bytes_whatever_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    save_trainer_state(tmp_path / "one", STATE)
    save_trainer_state(tmp_path / "two", TrainerState(3, 2, 1, dict(reversed(STATE.moments.items()))))
    for name in (TENSORS, COUNTERS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("name", [TENSORS, COUNTERS])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_a_truncated_file_is_refused(name: str, keep: float, tmp_path: Path) -> None:
    save_trainer_state(tmp_path, STATE)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(AgentRLError, match="missing or damaged"):
        load_trainer_state(tmp_path)


def test_a_missing_file_and_a_newer_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match="missing or damaged"):
        load_trainer_state(tmp_path)
    save_trainer_state(tmp_path, STATE)
    counters = (tmp_path / COUNTERS).read_text().replace('"version": 1', '"version": 2')
    (tmp_path / COUNTERS).write_text(counters)
    with pytest.raises(AgentRLError, match="newer"):
        load_trainer_state(tmp_path)


def test_a_full_disk_is_an_error_of_the_operating_system(small_disk: Path) -> None:
    with pytest.raises(OSError, match=TENSORS) as caught:
        save_trainer_state(small_disk, TrainerState(1, moments={"exp_avg.a": torch.zeros(100_000)}))
    assert caught.value.errno == errno.ENOSPC


def test_the_state_of_another_model_is_refused() -> None:
    with pytest.raises(AgentRLError, match="belongs to another model"):
        make_optimizer(trained_parameters(tiny_model()), STATE, 1e-3, 0.0)


def test_a_parameter_that_never_had_a_gradient_does_not_hinder_going_on() -> None:
    model = tiny_model()
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
    parameters = trained_parameters(model)
    optimizer = make_optimizer(parameters, TrainerState(), 1e-3, 0.0)
    model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    optimizer.step()
    state = TrainerState(1, moments=optimizer_moments(parameters, optimizer))
    make_optimizer(parameters, state, 1e-3, 0.0).step()
    assert torch.equal(state.moments["exp_avg.unused"], torch.zeros(2))
