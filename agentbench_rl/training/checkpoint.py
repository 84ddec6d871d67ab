"""The trainer's state between updates: AdamW moments by parameter name (safetensors) and counters (JSON).

Equal states give equal bytes.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.policies.disk import disk_errors
from agentbench_rl.types import AgentRLError

TENSORS, COUNTERS = "optimizer.safetensors", "trainer.json"
STATE_VERSION = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class TrainerState:
    """Optimizer steps made, steps skipped, consecutive skips up to now, and the moments: `exp_avg.<parameter>` ..."""

    steps: int = 0
    skipped: int = 0
    consecutive_skips: int = 0
    moments: dict[str, Tensor] = field(default_factory=dict)


def make_optimizer(model: Any, state: TrainerState, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW (betas 0.9 and 0.999) over the trainable parameters, continued from `state`; shares its tensors.

    Raises AgentRLError when the state belongs to other parameters.
    """
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=learning_rate, weight_decay=weight_decay, foreach=False)
    if not state.moments:
        return optimizer
    expected = {f"{moment}.{name}": value.shape for name, value in parameters.items() for moment in _MOMENTS}
    found = {name: value.shape for name, value in state.moments.items()}
    if expected != found:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise AgentRLError(f"the trainer state belongs to another model: {wrong[0]} is missing, unknown or reshaped")
    for name, parameter in parameters.items():
        moments = {moment: state.moments[f"{moment}.{name}"].to(parameter.device) for moment in _MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(float(state.steps)), **moments}
    return optimizer


def optimizer_moments(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of all trainable parameters by name (zero where no gradient came); empty before the first step."""
    if not optimizer.state:
        return {}
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        if parameter in optimizer.state
        else torch.zeros_like(parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for moment in _MOMENTS
    }


def save_trainer_state(directory: Path, state: TrainerState) -> None:
    """Write the state into a directory, which is made; raises OSError when the disk is full or refuses."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    with disk_errors(directory / TENSORS):
        save_file({name: value.contiguous() for name, value in state.moments.items()}, directory / TENSORS)
    counters = {entry.name: getattr(state, entry.name) for entry in dataclasses.fields(state)} | {
        "version": STATE_VERSION,
        "moments": len(state.moments),
    }
    (directory / COUNTERS).write_text(json.dumps(counters, indent=2, sort_keys=True) + "\n")


def load_trainer_state(directory: Path) -> TrainerState:
    """Read what `save_trainer_state` wrote.

    Raises AgentRLError when a file is missing, damaged, or of a newer version.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        counters = json.loads((directory / COUNTERS).read_text())
        version, count = counters.pop("version"), counters.pop("moments")
        if version > STATE_VERSION:
            raise AgentRLError(f"{directory / COUNTERS}: version {version} is newer than {STATE_VERSION}; upgrade")
        moments = load_file(directory / TENSORS)
        if len(moments) != count:
            raise AgentRLError(f"{directory / TENSORS} holds {len(moments)} tensors, {COUNTERS} says {count}")
        return TrainerState(**counters, moments=moments)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise AgentRLError(
            f"the trainer state in {directory} is missing or damaged ({error}); delete the directory and run again"
        ) from error
