"""A sampler behind a server: one client at a time, errors as they are, and what a dead server leaves."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbench_rl.policies.base import SamplingRequest
from agentbench_rl.policies.remote import RemoteSampler
from agentbench_rl.types import AgentRLError, InfrastructureError

SETTINGS = {"sampler": "hf", "threads": 1}
#: Says which policy was loaded last; a seed of 1 is a mistake of the user, of 2 a fault, of 3 one of the sampler.
#: A seed of 4 never ends, one of 5 takes long once.
PROGRAM = f"""
import sys
import time
from pathlib import Path
from agentbench_rl.policies.base import Completion
from agentbench_rl.policies.server import serve
from agentbench_rl.types import AgentRLError, InfrastructureError

class Parrot:
    entropies_are_lower_bounds = True
    slow = True
    def load(self, policy, version):
        self.version = version
    def generate(self, requests):
        (request,) = requests
        for seed, error in enumerate((AgentRLError, InfrastructureError, KeyError), 1):
            if request.seed == seed:
                raise error("seed " + str(seed))
        if request.seed == 4 or request.seed == 5 and self.slow:
            self.slow = False
            time.sleep(600.0 if request.seed == 4 else 3.0)
        return [Completion([self.version, *request.prompt_ids], [-0.1], [1 / 3], True)]
    def release(self, session):
        pass
    def close(self):
        self.version = -1

class Streamer(Parrot):
    waiting = ()
    def submit(self, request):
        self.waiting = (*self.waiting, request)
    def step(self):
        if self.slow:
            self.slow = False
            time.sleep(3.0)
        (request, *rest), self.waiting = self.waiting, self.waiting[1:]
        return [(request.session, Completion([self.version, *request.prompt_ids], [], [], True))]
    def close(self):
        self.waiting = ()

serve(globals()[sys.argv[2]](), Path("."), {SETTINGS!r}, Path(sys.argv[1]))
"""


@pytest.fixture(params=["Parrot"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    file = tmp_path / "server.json"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(file), request.param])
    until = time.monotonic() + 60.0
    while not file.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    yield file, process
    process.kill()
    process.wait()


def says_its_address(process: subprocess.Popen[bytes]) -> str:
    return rf"at 127\.0\.0\.1:\d+ \(process {process.pid}\)"


def said(sampler: RemoteSampler, seed: int = 0) -> list[int]:
    return sampler.generate([SamplingRequest("s", (7, 8), 1, seed)])[0].token_ids


def test_calls_go_through_and_errors_stay_what_they_are(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, process = server
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    sampler = RemoteSampler(file, SETTINGS)
    with pytest.raises(AgentRLError, match="call load first"):
        said(sampler)
    sampler.load(Path("policy"), 5)
    assert sampler.entropies_are_lower_bounds
    assert said(sampler) == [5, 7, 8]
    with pytest.raises(AgentRLError, match="seed 1"):
        said(sampler, 1)
    with pytest.raises(InfrastructureError, match="seed 2"):
        said(sampler, 2)
    with pytest.raises(InfrastructureError, match="KeyError: 'seed 3'"):
        said(sampler, 3)
    sampler.submit(SamplingRequest("s", (7,), 1, 0))
    with pytest.raises(AgentRLError, match="no requests while it samples"):
        sampler.step()
    with pytest.raises(AgentRLError, match="this process samples with the server already"):
        RemoteSampler(file, SETTINGS).load(Path("policy"), 6)
    with pytest.raises(AgentRLError, match=r"other settings .*threads is 1, not 3"):
        RemoteSampler(file, {"sampler": "hf", "threads": 3}).load(Path("policy"), 5)
    sampler.close()
    sampler.load(Path("policy"), 7)
    assert said(sampler) == [7, 7, 8]
    process.terminate()
    assert process.wait(20.0) == 0
    assert not file.exists()


def test_a_client_waits_until_the_one_before_has_finished(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, _ = server
    first = RemoteSampler(file, SETTINGS)
    first.load(Path("policy"), 1)
    copy = file.with_name("copy.json")  # as another process would: by its own connection
    copy.write_text(file.read_text())
    second = RemoteSampler(copy, SETTINGS)
    waiting = threading.Thread(target=second.load, args=(Path("policy"), 2))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    assert said(first)[0] == 1
    first.close()
    waiting.join(20.0)
    assert said(second)[0] == 2
    second.close()


def test_a_stranger_is_refused(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, _ = server
    file.write_text(json.dumps(json.loads(file.read_text()) | {"token": "guessed"}))
    with pytest.raises(AgentRLError, match="token is not that of this server"):
        RemoteSampler(file, SETTINGS).load(Path("policy"), 1)


def test_a_dead_server_is_a_fault_that_says_what_to_do(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, process = server
    sampler = RemoteSampler(file, SETTINGS)
    sampler.load(Path("policy"), 0)
    threading.Timer(0.3, process.send_signal, [signal.SIGKILL]).start()
    process.wait()
    with pytest.raises(InfrastructureError, match=r"does not answer.*`agentrl serve`"):
        said(sampler)
    with pytest.raises(InfrastructureError, match=r"does not answer.*run the same command again"):
        sampler.load(Path("policy"), 0)
    file.unlink()
    with pytest.raises(AgentRLError, match=r"no file of a server.*unset AGENTRL_SERVER"):
        sampler.load(Path("policy"), 0)


def test_a_call_that_never_ends_is_noticed_and_says_what_to_do(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, process = server
    sampler = RemoteSampler(file, SETTINGS, seconds=2.0)
    sampler.load(Path("policy"), 0)
    message = rf"{says_its_address(process)} has been at one call .*kill {process.pid}.*rollout\.server_seconds"
    with pytest.raises(InfrastructureError, match=message):
        said(sampler, 4)
    with pytest.raises(InfrastructureError, match=message):
        RemoteSampler(file, SETTINGS, seconds=2.0).load(Path("policy"), 0)


def test_a_process_that_accepts_and_says_nothing_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        file.write_text(json.dumps({"address": address, "pid": 7, "token": "t", "settings": SETTINGS}))
        sampler = RemoteSampler(file, SETTINGS, seconds=0.2)
        with pytest.raises(InfrastructureError, match=rf"{address} .*did not answer a call of 'load' within 0\.2 s"):
            sampler.load(Path("policy"), 0)


def test_a_call_that_was_lost_once_is_repeated(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, _ = server
    sampler = RemoteSampler(file, SETTINGS, seconds=2.0)
    sampler.load(Path("policy"), 3)
    assert said(sampler, 5) == [3, 7, 8]
    sampler.close()


@pytest.mark.parametrize("server", ["Streamer"], indirect=True)
def test_all_that_is_being_sampled_is_asked_for_again(server: tuple[Path, subprocess.Popen[bytes]]) -> None:
    file, _ = server
    sampler = RemoteSampler(file, SETTINGS, seconds=2.0)
    sampler.load(Path("policy"), 3)
    found: dict[str, list[int]] = {}
    for number in range(3):
        sampler.submit(SamplingRequest(f"s{number}", (number,), 1, 0))
        found |= {session: done.token_ids for session, done in sampler.step()}
    while len(found) < 3:
        found |= {session: done.token_ids for session, done in sampler.step()}
    assert found == {f"s{number}": [3, number] for number in range(3)}
    sampler.close()
