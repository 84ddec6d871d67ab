"""Environments in worker processes: every call has a deadline; a worker that misses one is ended, and replaced.

A worker hosts several environments and answers one call at a time. When it ends, all its environments are lost: each
call of them raises InfrastructureError, so that their episodes are played again, in another worker.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from agentbench_rl.envs.base import Environment, Suite
from agentbench_rl.types import Ending, InfrastructureError, Observation, StepResult, Task

#: A suite may read large data or build an index when it is opened.
_OPEN_SECONDS = 600.0
_END_SECONDS = 5.0


class RemoteEnvironment(Environment):
    """An environment in a worker of a pool, which is given to it by its first `reset` or `restore`.

    Every call raises InfrastructureError where the worker ended, and of ending `timeout` where it ended for this call.
    `close` waits for nothing.
    """

    def __init__(self, pool: EnvironmentPool, worker: _Worker | None = None, number: int = 0) -> None:
        self._pool, self._worker, self._number = pool, worker, number
        self._closed = False

    def reset(self, task: Task) -> Observation:
        """Start the task; see `Environment`."""
        self._settle()
        observation: Observation = self._call("reset", task)
        return observation

    def step(self, action: str) -> StepResult:
        """Execute one action; see `Environment`."""
        result: StepResult = self._call("step", action)
        return result

    def snapshot(self) -> object:
        """The snapshot of the environment itself, which instances in all workers accept."""
        return self._call("snapshot")

    def restore(self, snapshot: object) -> None:
        """Return to the state of a snapshot; see `Environment`."""
        self._settle()
        self._call("restore", snapshot)

    def fork(self) -> RemoteEnvironment:
        """Return an independent copy, in the same worker."""
        number, worker = next(self._pool.numbers), self._hosted()
        self._call("fork", number)
        worker.hosted += 1
        return RemoteEnvironment(self._pool, worker, number)

    def digest(self) -> str:
        """Hash of the whole hidden state."""
        return str(self._call("digest"))

    def state_key(self) -> str:
        """Canonical key of the hidden state."""
        return str(self._call("state_key"))

    def admissible(self) -> list[str] | None:
        """Sorted admissible actions, or None."""
        actions: list[str] | None = self._call("admissible")
        return actions

    def process_reward(self) -> float | None:
        """Share of the goal's conditions that hold now, or None."""
        progress: float | None = self._call("process_reward")
        return progress

    def expert_action(self) -> str | None:
        """An action of an expert, or None."""
        action: str | None = self._call("expert_action")
        return action

    def close(self) -> None:
        """Give the place in the worker free; the environment is closed before the worker's next call, or at its end."""
        if self._worker is not None and not self._closed:
            self._worker.leave(self._number)
        self._closed = True

    def _settle(self) -> None:
        if self._worker is None:
            self._worker, self._number = self._pool.place()

    def _hosted(self) -> _Worker:
        if self._worker is None:
            raise InfrastructureError("an environment was used before its first reset or restore")
        return self._worker

    def _call(self, method: str, *arguments: object) -> Any:
        return self._hosted().call(self._pool.step_seconds, self._number, method, *arguments)


class EnvironmentPool:
    """Worker processes that host the environments of one suite; a context, at whose end they end.

    opener: opens the suite in every worker; a function of a module, or a `partial` of one. step_seconds: deadline of
    every call. Workers start when they are first needed.
    """

    def __init__(self, opener: Callable[[], Suite], *, workers: int, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.numbers = itertools.count()
        self._opener = opener
        self._workers: list[_Worker | None] = [None] * workers
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make(self) -> RemoteEnvironment:
        """A new environment; it waits for nothing."""
        return RemoteEnvironment(self)

    def place(self) -> tuple[_Worker, int]:
        """Give a new environment a place where the fewest are, in a new worker if there is none or it ended."""
        with self._lock:
            if self._closed:
                raise InfrastructureError("the pool of environments is closed")
            loads = [0 if worker is None or worker.lost else worker.hosted for worker in self._workers]
            index = loads.index(min(loads))
            worker = self._workers[index]
            if worker is None or worker.lost:
                worker = self._workers[index] = _Worker(self._opener)
            worker.hosted += 1
            return worker, next(self.numbers)

    def close(self) -> None:
        """End all workers: idle ones by themselves, closing what they host, those at work at once; idempotent."""
        with self._lock:
            self._closed = True
            workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.end(_END_SECONDS)


class _Worker:
    """A process and the pipe to it. hosted: environments in it. lost: it ended, and all its environments with it."""

    def __init__(self, opener: Callable[[], Suite]) -> None:
        # Not forked: the parent's threads, pipes and GPU are not for it.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, opener), daemon=True)
        self._process.start()
        theirs.close()
        self._one_call = threading.Lock()
        self._opened = self._dismissed = self._ended = self.lost = False
        self.hosted = 0
        self._left: list[int] = []

    def leave(self, number: int) -> None:
        """Close an environment before the next call."""
        self.hosted -= 1
        self._left.append(number)

    def call(self, seconds: float, number: int, method: str, *arguments: object) -> Any:
        """Call a method of an environment; raises what it raises, or InfrastructureError where the worker ends."""
        with self._one_call:
            if self.lost:
                raise InfrastructureError("the worker process of an environment ended, and the environment with it")
            if not self._opened:
                self._answer("opening the environment", _OPEN_SECONDS, None)
                self._opened = True
            left, self._left = self._left, []
            return self._answer(method, seconds, (left, number, method, arguments))

    def dismiss(self) -> None:
        """Let it end by itself where it waits for calls."""
        if self._one_call.acquire(blocking=False):
            self._connection.close()
            self._dismissed = self.lost = True
            self._one_call.release()

    def end(self, grace: float = 0.0) -> None:
        """End it and whatever it started; after `grace` seconds where it was dismissed; idempotent."""
        self.lost = True
        if self._ended:
            return
        self._ended = True
        if self._dismissed:
            self._process.join(grace)
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def _answer(self, what: str, seconds: float, question: object) -> Any:
        try:
            if question is not None:
                self._connection.send(question)
            if not self._connection.poll(seconds):
                self.end()
                message = f"{what} of an environment took longer than {seconds:g} s (rollout.step_seconds)"
                raise InfrastructureError(message, Ending.TIMEOUT)
            kept, value = self._connection.recv()
        except (EOFError, OSError) as error:
            self.end()
            code = self._process.exitcode
            raise InfrastructureError(f"a worker process of environments ended in {what} (exit code {code})") from error
        if not kept:
            raise value
        return value


def _serve(connection: Connection, opener: Callable[[], Suite]) -> None:
    """Answer calls until the other side closes the pipe; environments and suite are released at the end."""
    os.setpgid(0, 0)  # an interrupt is for the parent alone, and what an environment starts ends with this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    environments: dict[int, Environment] = {}
    with suppress(EOFError, OSError):
        try:
            suite = opener()
        except Exception as error:
            connection.send((False, _portable(error)))
            return
        connection.send((True, None))
        while True:
            left, number, method, arguments = connection.recv()
            try:
                _close(environments.pop(other, None) for other in left)
                if number not in environments:
                    environments[number] = suite.make()
                answer: tuple[bool, Any] = True, _perform(environments, number, method, arguments)
            except Exception as error:
                answer = False, _portable(error)
            connection.send(answer)
    _close(environments.values())


def _perform(environments: dict[int, Environment], number: int, method: str, arguments: tuple[Any, ...]) -> Any:
    if method != "fork":
        return getattr(environments[number], method)(*arguments)
    environments[arguments[0]] = environments[number].fork()
    return None


def _close(environments: Iterable[Environment | None]) -> None:
    for environment in environments:
        if environment is not None:
            environment.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def _portable(error: Exception) -> Exception:
    """The error with where it happened; what cannot be sent is told in words."""
    place = "In a worker process of environments:\n" + "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(place)
    return error
