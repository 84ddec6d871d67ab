"""Sampling the next iteration while this one is scored and trained on: rollouts in a process of their own.

The files are those of the stage in this process. The process ends with this one, whatever ends it; a rollout that has
begun is finished first, unless that end is sudden.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.types import InfrastructureError, Progress


class Ahead:
    """Rollouts of a run, each begun when the one before it is there, or when it is asked for."""

    def __init__(
        self, experiment: Experiment, layout: Layout, algorithm: str, seed: int, pool: ProcessPoolExecutor
    ) -> None:
        self._run, self._pool = (experiment, layout, algorithm, seed), pool
        self._begun: dict[int, Future[Json]] = {}

    def begin(self, iteration: int) -> None:
        """Begin to sample an iteration."""
        self._begun[iteration] = self._pool.submit(rollout, *self._run, iteration)

    def rollout(self, iteration: int, progress: Progress) -> Json:
        """The manifest of an iteration's rollout, which is waited for or made; raises what made it fail.

        progress: of one that is made here. Raises InfrastructureError where the process that sampled was ended.
        """
        begun = self._begun.pop(iteration, None)
        if begun is None:
            return rollout(*self._run, iteration, progress)
        try:
            return begun.result()
        except BrokenProcessPool as error:
            raise InfrastructureError(
                f"the process that sampled iteration {iteration} ahead was ended from outside, which systems do where "
                "memory is short (lower rollout.batch_slots or training.micro_batch_tokens). Finished stages are kept"
            ) from error


@contextmanager
def ahead(experiment: Experiment, layout: Layout, algorithm: str, seed: int) -> Iterator[Ahead]:
    """Open what samples ahead; its process is started by the first rollout that is begun."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_end_with_parent) as pool:
        yield Ahead(experiment, layout, algorithm, seed, pool)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
