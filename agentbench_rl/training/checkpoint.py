"""The trainer's state between updates: AdamW moments by parameter name, weights of adapters, and counters (JSON).

One process writes its tensors as safetensors, equal states as equal bytes. Several write their shards side by side
(torch.distributed.checkpoint); either is read by any number of processes.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentbench_rl.policies.disk import disk_errors
from agentbench_rl.training.sharding import placed_like
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import AgentRLError

TENSORS, COUNTERS, SHARDS = "optimizer.safetensors", "trainer.json", ".metadata"
STATE_VERSION = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")
_WEIGHTS = "weights."


@dataclass(frozen=True)
class TrainerState:
    """Optimizer steps made, steps skipped, consecutive skips up to now, and the moments: `exp_avg.<parameter>` ...

    weights: by parameter, of a model that is trained in part (adapters): they are in no policy by themselves.
    """

    steps: int = 0
    skipped: int = 0
    consecutive_skips: int = 0
    moments: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


Parameters = Mapping[str, torch.nn.Parameter]


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The trainable parameters of a model by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def make_optimizer(
    parameters: Parameters, state: TrainerState, learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (betas 0.9 and 0.999) over parameters, continued from `state`; shares its tensors.

    Raises AgentRLError when the state belongs to other parameters.
    """
    optimizer = torch.optim.AdamW(parameters.values(), lr=learning_rate, weight_decay=weight_decay, foreach=False)
    if not state.moments:
        return optimizer
    _check_names(
        {f"{moment}.{name}": value for name, value in parameters.items() for moment in _MOMENTS}, state.moments
    )
    for name, parameter in parameters.items():
        moments = {moment: placed_like(state.moments[f"{moment}.{name}"], parameter) for moment in _MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(float(state.steps)), **moments}
    return optimizer


def optimizer_moments(parameters: Parameters, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of parameters by name (zero where no gradient came); empty before the first step."""
    if not optimizer.state:
        return {}
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        if parameter in optimizer.state
        else torch.zeros_like(parameter)
        for name, parameter in parameters.items()
        for moment in _MOMENTS
    }


def restore_weights(model: Any, state: TrainerState) -> None:
    """Put the state's weights into a model that is trained in part; raises AgentRLError when they are of another."""
    if not state.weights:
        return
    parameters = trained_parameters(model)
    _check_names(parameters, state.weights)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(placed_like(state.weights[name], parameter))


def _check_names(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    wanted = {name: value.shape for name, value in expected.items()}
    shapes = {name: value.shape for name, value in found.items()}
    if wanted != shapes:
        wrong = min(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name))
        raise AgentRLError(f"the trainer state belongs to another model: {wrong} is missing, unknown or reshaped")


def save_trainer_state(directory: Path, state: TrainerState, world: World = ALONE) -> None:
    """Write the state into a directory, which is made; raises OSError when the disk is full or refuses.

    All processes of a world must write theirs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = state.moments | {f"{_WEIGHTS}{name}": value for name, value in state.weights.items()}
    if any(isinstance(value, DTensor) for value in tensors.values()):
        _write_shards(directory, tensors)
    elif world.leads:
        _write_whole(directory, tensors)
    if world.leads:
        counters = {name: getattr(state, name) for name in ("steps", "skipped", "consecutive_skips")}
        counters |= {"version": STATE_VERSION, "moments": len(tensors)}
        (directory / COUNTERS).write_text(json.dumps(counters, indent=2, sort_keys=True) + "\n")


def _write_whole(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with disk_errors(directory / TENSORS):
        save_file({name: value.contiguous() for name, value in tensors.items()}, directory / TENSORS)


def _write_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(tensors), storage_writer=FileSystemWriter(directory))


def load_trainer_state(directory: Path, model: Any = None) -> TrainerState:
    """Read what `save_trainer_state` wrote, by any number of processes.

    model: the sharded one that the state is of; its tensors come in the same shards.
    Raises AgentRLError when a file is missing, damaged, or of a newer version.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        counters = json.loads((directory / COUNTERS).read_text())
        version, count = counters.pop("version"), counters.pop("moments")
        if version > STATE_VERSION:
            raise AgentRLError(f"{directory / COUNTERS}: version {version} is newer than {STATE_VERSION}; upgrade")
        is_sharded = (directory / SHARDS).exists()
        tensors = _read_shards(directory, model) if is_sharded else load_file(directory / TENSORS)
        if len(tensors) != count:
            raise AgentRLError(f"{directory} holds {len(tensors)} tensors, {COUNTERS} says {count}")
    except (OSError, ValueError, TypeError, KeyError, SafetensorError, CheckpointException, *_UNREADABLE) as error:
        raise AgentRLError(
            f"the trainer state in {directory} is missing or damaged ({_reason(error)}); delete the directory and run "
            "again"
        ) from error
    weights = {name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
    return TrainerState(
        **counters,
        moments={name: value for name, value in tensors.items() if not name.startswith(_WEIGHTS)},
        weights=weights,
    )


#: What reading a file of shards that was cut off may raise.
_UNREADABLE = (EOFError, RuntimeError, pickle.UnpicklingError)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _read_shards(directory: Path, model: Any) -> dict[str, Tensor]:
    """The tensors, each in the shards of the model's parameter of its name, or whole where there is none such."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(directory)
    parameters = {} if model is None else trained_parameters(model)
    described: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {}
    for name, facts in described.items():
        like = parameters.get(name.partition(".")[2])
        if isinstance(like, DTensor) and like.shape == facts.size:
            tensors[name] = torch.zeros_like(like, requires_grad=False)
        else:
            tensors[name] = torch.zeros(facts.size, dtype=facts.properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # of one process, which is meant
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return tensors
