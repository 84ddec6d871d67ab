"""The processes that share the work. torchrun starts them; most runs have one, whose numbers nothing here touches.

The first process runs the command and writes the files. The others wait for work that is shared, are told all that the
first one knows of it, and compute a part of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
#: How long processes wait for the first one, which samples meanwhile; one that dies ends them all.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class World:
    """This process's number among `size` processes; weights are sharded over the mesh (None: not at all).

    channel: carries Python objects.
    """

    rank: int = 0
    size: int = 1
    mesh: DeviceMesh | None = None
    channel: ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this process runs the command and writes files."""
        return self.rank == 0

    def gather(self, item: T) -> list[T]:
        """The items of all processes, in their order, in every one of them."""
        if self.channel is None:
            return [item]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item, group=self.channel)
        return found

    def told(self, item: Any = None) -> Any:
        """The first process's item, in every process."""
        if self.channel is None:
            return item
        import torch.distributed as dist

        told = [item]
        dist.broadcast_object_list(told, src=0, group=self.channel)
        return told[0]


def launched() -> World:
    """What torchrun says of this process, before it has joined the others; alone where torchrun did not start it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


ALONE = World()
_worlds = [ALONE]


def current_world() -> World:
    """The world that is open in this process."""
    return _worlds[-1]


def together(work: Callable[..., T], *arguments: Any, **own: Any) -> T:
    """What `work` returns in the first process; the others, which `follow`, call it with the same arguments.

    work: a function of a module. own: arguments of the first process alone, such as callbacks.
    """
    current_world().told((work, arguments))
    return work(*arguments, **own)


def follow() -> None:
    """Take part in all work that the first process shares, until that one is done."""
    world = current_world()
    while (told := world.told()) is not None:
        work, arguments = told
        work(*arguments)


@contextmanager
def open_world(device: str) -> Iterator[World]:
    """Join the processes that torchrun started, each with the GPU of its number on its machine; else be alone.

    When the first process leaves without an error, the others are told None.
    Raises AgentRLError where a machine has fewer GPUs than processes.
    """
    if launched() is ALONE:
        yield ALONE
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if device == "cuda":
        _take_gpu(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    size = dist.get_world_size()
    channel = dist.new_group(backend="gloo", timeout=_PATIENCE)
    world = World(dist.get_rank(), size, init_device_mesh(device, (size,)), channel)
    _worlds.append(world)
    try:
        yield world
        if world.leads:
            world.told(None)
    finally:
        _worlds.pop()
        dist.destroy_process_group()


def _take_gpu(local_rank: int, processes: int) -> None:
    import torch

    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise AgentRLError(
            f"torchrun started {processes} processes on this machine, and each needs a GPU of its own, but torch finds "
            f"{gpus}; use --nproc-per-node {max(gpus, 1)}{'' if gpus else ' and device: cpu, or see `agentrl doctor`'}"
        )
    torch.cuda.set_device(local_rank)
