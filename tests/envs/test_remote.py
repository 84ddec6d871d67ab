"""Environments in worker processes: the contract holds through the pipe, and nothing that goes wrong there is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from doubtful_world import DoubtfulSuite, task

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.envs import contract, open_source
from agentbench_rl.envs.base import Suite
from agentbench_rl.envs.remote import EnvironmentPool, RemoteEnvironment
from agentbench_rl.presets import load_environment
from agentbench_rl.types import AgentRLError, Ending, InfrastructureError

ENVIRONMENT = load_environment("alfworld")


class RemoteSuite:
    """A suite whose episodes are played in a pool."""

    def __init__(self, suite: Suite, pool: EnvironmentPool) -> None:
        self._suite, self.make = suite, pool.make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._suite, name)


def open_households(environment: EnvironmentConfig) -> Suite:
    return open_source(environment, contract.counts(environment, 10))


@pytest.fixture(scope="module")
def households() -> Iterator[Suite]:
    with EnvironmentPool(partial(open_households, ENVIRONMENT), workers=2, step_seconds=60.0) as pool:
        yield RemoteSuite(open_households(ENVIRONMENT), pool)  # type: ignore[misc]


@pytest.mark.parametrize("check", contract.TASK_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract(check: contract.TaskCheck, households: Suite) -> None:
    played = households.tasks(ENVIRONMENT.splits[0])[0]
    actions, _ = contract.expert_actions(ENVIRONMENT, open_households(ENVIRONMENT), played)
    check(households, played, actions)


@pytest.fixture
def doubtful(tmp_path: Path) -> Iterator[Callable[..., EnvironmentPool]]:
    pools = []

    def open_pool(workers: int = 1, step_seconds: float = 20.0, marks: Path = tmp_path) -> EnvironmentPool:
        pools.append(EnvironmentPool(partial(DoubtfulSuite, marks), workers=workers, step_seconds=step_seconds))
        return pools[-1]

    yield open_pool
    for pool in pools:
        pool.close()


def begun(pool: EnvironmentPool, name: str) -> tuple[RemoteEnvironment, int]:
    """An environment that began a task, and the process it is in."""
    environment = pool.make()
    return environment, int(environment.reset(task(name)).text.removeprefix("worker "))


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()


def test_a_call_beyond_its_deadline_ends_the_worker_and_what_else_it_hosts(
    doubtful: Callable[..., EnvironmentPool],
) -> None:
    pool = doubtful(step_seconds=3.0)
    (late, process), (other, same) = begun(pool, "hang.0"), begun(pool, "well.0")
    assert process == same
    with pytest.raises(InfrastructureError, match=r"longer than 3 s \(rollout.step_seconds\)") as fault:
        late.step("go")
    assert fault.value.ending is Ending.TIMEOUT
    with pytest.raises(InfrastructureError) as lost:
        other.step("go")
    assert lost.value.ending is Ending.ENV_ERROR
    assert not running(process)
    again, replaced = begun(pool, "hang.0")
    assert replaced != process
    assert again.step("go").observation == "step 1"


def test_a_worker_that_dies_is_a_fault_and_is_replaced(doubtful: Callable[..., EnvironmentPool]) -> None:
    pool = doubtful()
    dying, process = begun(pool, "die.0")
    with pytest.raises(InfrastructureError, match=r"ended in step \(exit code 7\)"):
        dying.step("go")
    assert begun(pool, "die.0")[1] != process


def test_errors_travel_as_what_they_are(doubtful: Callable[..., EnvironmentPool]) -> None:
    pool = doubtful()
    with pytest.raises(KeyError, match="a mistake of its author") as mistake:
        begun(pool, "mistake.0")[0].step("go")
    assert "_go_wrong" in "".join(mistake.value.__notes__)
    with pytest.raises(RuntimeError, match="UnsendableError: two words"):
        begun(pool, "unsendable.0")[0].step("go")
    with pytest.raises(InfrastructureError, match="a fault"):
        begun(pool, "fault.0")[0].step("go")


def test_a_suite_that_cannot_be_opened_says_why(doubtful: Callable[..., EnvironmentPool], tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match="does not exist; make it"):
        begun(doubtful(marks=tmp_path / "none"), "well.0")


def test_environments_are_spread_over_workers_and_closed_at_the_end(
    doubtful: Callable[..., EnvironmentPool], tmp_path: Path
) -> None:
    pool = doubtful(workers=2)
    environments, processes = zip(*(begun(pool, f"well.{number}") for number in range(4)), strict=True)
    assert processes[:2] == processes[2:]
    assert len(set(processes)) == 2
    environments[0].close()
    environments[0].close()
    assert begun(pool, "well.5")[1] == processes[0]
    assert (tmp_path / "closed").read_text() == "well.0\n"
    pool.close()
    assert sorted((tmp_path / "closed").read_text().split()) == [f"well.{number}" for number in (0, 1, 2, 3, 5)]
    assert not any(map(running, processes))
    with pytest.raises(InfrastructureError, match="closed"):
        begun(pool, "well.6")


#: Where tests run in the background, interrupts are ignored; the program is one that a user can interrupt.
PROGRAM = """
import signal, sys
from functools import partial
from pathlib import Path
sys.path[:0] = {path!r}
from doubtful_world import DoubtfulSuite, task
from agentbench_rl.envs.remote import EnvironmentPool
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with EnvironmentPool(partial(DoubtfulSuite, Path({marks!r})), workers=1, step_seconds=600.0) as pool:
        environment = pool.make()
        environment.reset(task("hang.0"))
        environment.step("go")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=sys.path, marks=str(tmp_path)), encoding="utf-8")
    parent = subprocess.Popen([sys.executable, program], stderr=subprocess.DEVNULL)
    mark, until = tmp_path / "hang.0", time.monotonic() + 60.0
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    parent.send_signal(number)
    assert parent.wait(20.0) != 0
    until = time.monotonic() + 10.0
    while running(int(mark.read_text())) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(int(mark.read_text()))
