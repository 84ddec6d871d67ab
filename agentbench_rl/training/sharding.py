"""Weights, gradients and micro-batches spread over processes by FSDP2 (torch.distributed.fsdp.fully_shard).

Every transformer block is gathered while it computes, and so is what remains of a model. Weights and what the optimizer
keeps stay in their own type (float32), computation is in `training.dtype`; gradients are added up over the processes in
float32 or wider, not averaged: the loss is already normalised over the whole step. All processes go through a model
equally often, so that one without a micro-batch left goes through it with an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from agentbench_rl.config import TrainingConfig
from agentbench_rl.policies.critic import Critic
from agentbench_rl.training.logprobs import token_pass
from agentbench_rl.training.packing import PackedBatch, row_batches
from agentbench_rl.training.sequences import Sequence
from agentbench_rl.training.world import World
from agentbench_rl.types import AgentRLError


def shard_policy(model: Any, training: TrainingConfig, world: World) -> None:
    """Shard a causal LM, whose forward pass is then `token_pass`; in a world without a mesh it stays what it is."""
    shard_model(model, partial(token_pass, model), training, world)


def shard_model(model: Any, forward: Callable[..., Any], training: TrainingConfig, world: World) -> None:
    """Shard a causal LM, whose forward pass is then `forward`; in a world without a mesh it stays what it is."""
    if not _shards(training, world):
        return
    model.forward = forward  # weights are gathered for `forward` alone
    _shard([*blocks(model), model], training, world)


def shard_critic(critic: Critic, training: TrainingConfig, world: World) -> None:
    """Shard the value head, and the backbone where it has its own."""
    if not _shards(training, world):
        return
    if critic.backbone is not None:
        _shard([*blocks(critic.backbone), critic.backbone], training, world)
    shard_head(critic.head, training, world)


def shard_head(head: Any, training: TrainingConfig, world: World) -> None:
    """Shard what computes numbers from hidden states, in float32 or wider."""
    if _shards(training, world):
        _shard([head], training.model_copy(update={"dtype": "float32"}), world)


def _shards(training: TrainingConfig, world: World) -> bool:
    """Whether a world has a mesh to shard over; raises AgentRLError where `cpu_offload` needs one."""
    if training.cpu_offload and world.mesh is None:
        raise AgentRLError(
            "training.cpu_offload is a part of sharding: run this command under torchrun, one process is enough "
            "(torchrun --nproc-per-node 1 -m agentbench_rl ...)"
        )
    return world.mesh is not None


def _shard(modules: Iterable[Any], training: TrainingConfig, world: World) -> None:
    policy = MixedPrecisionPolicy()
    if training.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if training.cpu_offload else OffloadPolicy()
    for module in modules:
        fully_shard(module, mesh=world.mesh, mp_policy=policy, offload_policy=offload)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def blocks(model: Any) -> list[Any]:
    """The transformer blocks of a model; raises AgentRLError where transformers does not name them."""
    names = model._no_split_modules or ()
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise AgentRLError(
            f"model {type(model).__name__} does not say which of its modules are transformer blocks: it can neither be "
            "sharded nor trained with training.gradient_checkpointing"
        )
    return found


def recompute_blocks(model: Any) -> None:
    """Keep only what enters a block for the backward pass, which computes the block again: the same numbers."""
    for block in blocks(model):
        # transformers' own switch works in training mode alone, where dropout would be on.
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )


def own_batches(batches: Items[PackedBatch], world: World) -> list[int | None]:
    """Numbers of the micro-batches of this process, None for a pass without one; as many in every process.

    What the processes compute at the same time is of similar size.
    """
    if world.size == 1:
        return list(range(len(batches)))
    order = sorted(range(len(batches)), key=lambda number: -batches[number].input_ids.numel())
    own: list[int | None] = [*order[world.rank :: world.size]]
    return own + [None] * (-(-len(order) // world.size) - len(own))


def empty_batch() -> PackedBatch:
    """A micro-batch in which nothing is trained."""
    (batch,) = row_batches([Sequence(np.zeros(2, np.int64), ())], 2)
    return batch


def micro_batch_budget(sequences: Items[Sequence], micro_batch_tokens: int, world: World) -> int:
    """Tokens of a micro-batch: as many as are allowed, or fewer, so that no process is left without one."""
    if world.size == 1:
        return micro_batch_tokens
    lengths = [len(sequence.token_ids) for sequence in sequences]
    return min(micro_batch_tokens, max([*lengths, -(-sum(lengths) // world.size)]))


def full(value: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; all processes must ask for it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def placed_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, known in every process, on the device and in the shards of another one."""
    if isinstance(value, DTensor) or not isinstance(like, DTensor):
        return value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None).to(like.device)


def full_weights(model: Any, world: World) -> dict[str, Tensor]:
    """All weights by name, in the memory of the first process; none elsewhere. All processes must ask for them."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        whole = full(value.detach())
        if world.leads:
            weights[name] = whole.cpu()
    return weights
