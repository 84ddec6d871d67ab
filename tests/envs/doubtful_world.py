"""A suite whose tasks go wrong as their names say, once per directory of marks; opened in worker processes."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from agentbench_rl.types import AgentRLError, InfrastructureError, Observation, StepResult, Task

KINDS = ("well", "hang", "die", "mistake", "unsendable", "fault")


class UnsendableError(Exception):
    """Cannot be built from its arguments, and so not be sent."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class DoubtfulSuite:
    """Tasks `KIND.N`: the first step of the first episode goes wrong; another one succeeds with its third step."""

    version = "doubtful-1"

    def __init__(self, marks: Path) -> None:
        if not marks.is_dir():
            raise AgentRLError(f"{marks} does not exist; make it")
        self.marks = marks

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def tasks(self, split: str) -> list[Task]:
        return [task(f"{kind}.{number}") for kind in sorted(KINDS) for number in range(9)]

    def make(self) -> Doubtful:
        return Doubtful(self.marks)


class Doubtful:
    def __init__(self, marks: Path) -> None:
        self._marks = marks
        self._steps = 0

    def reset(self, task: Task) -> Observation:
        self._task = task.task_id
        return Observation(f"worker {os.getpid()}")

    def step(self, action: str) -> StepResult:
        self._steps += 1
        mark = self._marks / self._task
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            self._go_wrong(self._task.partition(".")[0])
        done = self._steps == 3
        return StepResult(f"step {self._steps}", float(done), done, done)

    def _go_wrong(self, kind: str) -> None:
        match kind:
            case "hang":
                time.sleep(600)
            case "die":
                os._exit(7)
            case "mistake":
                raise KeyError("a mistake of its author")
            case "unsendable":
                raise UnsendableError("two", "words")
            case "fault":
                raise InfrastructureError("a fault")

    def state_key(self) -> str:
        return f"{self._task}/{self._steps}"

    def process_reward(self) -> float | None:
        return None

    def close(self) -> None:
        (self._marks / "closed").open("a").write(f"{self._task}\n")


def task(name: str) -> Task:
    return Task(name, name.partition(".")[0], "train", hashlib.sha256(name.encode()).hexdigest())
