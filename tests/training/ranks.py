"""Functions run in several processes that share a world, as under torchrun."""

from __future__ import annotations

import io
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from agentbench_rl.training.world import open_world


def in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(world, *arguments)` returns in each of `count` processes; all but the first are told the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = get_context("fork")
    started = []
    for rank in range(count):
        here, there = context.Pipe()
        process = context.Process(target=_run, args=(rank, count, port, there, function, arguments))
        process.start()
        there.close()
        started.append((process, here))
    try:
        return [_answer(pipe) for _, pipe in started]
    finally:
        for process, _ in started:
            process.join(10)
            process.kill()


def _run(
    rank: int, count: int, port: int, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"}
    torch.set_num_threads(1)
    try:
        with open_world("cpu") as world:
            answer = function(world, *arguments)
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
    buffer = io.BytesIO()
    torch.save(answer, buffer)
    pipe.send(buffer.getvalue())


def _answer(pipe: Connection) -> Any:
    assert pipe.poll(120), "a process does not answer"
    sent = pipe.recv()
    assert isinstance(sent, bytes), sent
    return torch.load(io.BytesIO(sent), weights_only=False)
