"""A server that hosts a sampler over HTTP on this machine, so that an engine is started once for many processes.

Its file tells address, process, token, and the settings it samples with. A client holds it from its first `load` until
its connection ends, and others wait for that: nobody samples with weights that another client loaded. Calls are JSON:
`load` (policy, version), `generate` (requests), `step` (new requests; what is done), `health`, `shutdown`. Who waits to
`load` is told now and then for how long the sampler has been at one call, and asks again.
"""

from __future__ import annotations

import hmac
import json
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentbench_rl.policies.base import Sampler, SamplingRequest, StreamingSampler
from agentbench_rl.types import AgentRLError, InfrastructureError

Json = dict[str, Any]
#: A step of a server samples until a response is done, or so many seconds: new requests should not wait long.
_STEP_SECONDS = 0.02
_WAIT_SECONDS = 0.5


def serve(sampler: Sampler, policy: Path | None, settings: Json, file: Path) -> None:
    """Load a policy, if one is given, write the file, and answer until SIGTERM, an interrupt or a call of `shutdown`.

    settings: what clients compare with theirs. All work of the sampler is done by the calling thread, the main one.
    """
    if policy is not None:
        sampler.load(policy.resolve(), 0)
    server = _Server(sampler)
    told = {"pid": os.getpid(), "token": server.token, "settings": settings}
    signal.signal(signal.SIGTERM, lambda *_: server.work.put(None))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _write(file, {"address": f"127.0.0.1:{server.server_port}", **told})
    try:
        while (work := server.work.get()) is not None:
            work()
    except KeyboardInterrupt:
        return
    finally:
        file.unlink(missing_ok=True)
        sampler.close()


class _Server(ThreadingHTTPServer):
    """lease: held by the connection that loaded a policy. work: for the sampler's thread; None ends it."""

    daemon_threads = True

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.sampler = sampler
        self.token = secrets.token_hex(16)
        self.lease = threading.Lock()
        self.work = queue.SimpleQueue[Callable[[], None] | None]()
        self.outstanding = 0
        self._begun: float | None = None

    @property
    def busy(self) -> float:
        """For how many seconds the sampler has been at one call."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    def call(self, function: Callable[[], Json]) -> Json:
        """Do something in the sampler's thread and return what it returns, or raise what it raises."""
        answer = Future[Json]()

        def work() -> None:
            self._begun = time.monotonic()
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)
            finally:
                self._begun = None

        self.work.put(work)
        return answer.result()

    def load(self, policy: str, version: int) -> Json:
        self.sampler.load(Path(policy), version)
        return {"entropies_are_lower_bounds": self.sampler.entropies_are_lower_bounds}

    def generate(self, requests: Sequence[Json], released: Sequence[str]) -> Json:
        self._release(released)
        completions = self.sampler.generate([SamplingRequest(**request) for request in requests])
        return {"completions": [asdict(completion) for completion in completions]}

    def step(self, requests: Sequence[Json], released: Sequence[str]) -> Json:
        self._release(released)
        if not isinstance(self.sampler, StreamingSampler):
            raise AgentRLError("this server's sampler takes no requests while it samples; it has to be vllm")
        for request in requests:
            self.sampler.submit(SamplingRequest(**request))
        self.outstanding += len(requests)
        done: list[Any] = []
        until = time.monotonic() + _STEP_SECONDS
        while self.outstanding and not done:
            done += [(session, asdict(completion)) for session, completion in self.sampler.step()]
            if time.monotonic() >= until:
                break
        self.outstanding -= len(done)
        return {"done": done}

    def close_sampler(self) -> Json:
        self.sampler.close()
        self.outstanding = 0
        return {}

    def _release(self, sessions: Sequence[str]) -> None:
        for session in sessions:
            self.sampler.release(session)


class _Connection(BaseHTTPRequestHandler):
    """One client; its connection stays open from call to call, and its end gives the server free."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _holds = False

    def do_POST(self) -> None:
        """Answer a call."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        known = hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {self.server.token}")
        status = 401
        answer: Json = {"error": "the token is not that of this server's file"}
        if known:
            try:
                status, answer = 200, self._perform(self.path.removeprefix("/"), body)
            except AgentRLError as error:
                status, answer = 400, {"error": str(error)}
            except Exception as error:  # whatever it is, the client's job ends with it and the server goes on
                kind = "" if isinstance(error, InfrastructureError) else f"{type(error).__name__}: "
                status, answer = 500, {"error": f"{kind}{error}"}
        try:
            self._answer(status, answer)
        except ConnectionError:  # the client would not wait for it
            self.close_connection = True

    def _perform(self, name: str, body: Json) -> Json:
        server = self.server
        if name == "health":
            return {"pid": os.getpid(), "busy": server.busy}
        if name == "shutdown":
            server.work.put(None)
            return {}
        if name == "load" and not self._holds:
            if not server.lease.acquire(timeout=_WAIT_SECONDS):
                return {"busy": server.busy}
            self._holds = True
        if name not in ("load", "generate", "step") or not self._holds:
            raise AgentRLError(f"{name!r} is no call of this server, or came before load")
        return server.call(lambda: getattr(server, name)(**body))

    def _answer(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def finish(self) -> None:
        """The client is gone: the next one may load."""
        with suppress(OSError):
            super().finish()
        if self._holds:
            self._holds = False
            try:
                self.server.call(self.server.close_sampler)
            finally:
                self.server.lease.release()

    def log_message(self, format: str, *arguments: object) -> None:
        """Calls are not logged."""


def _write(file: Path, content: Json) -> None:
    """Write the file at once, for the user alone: it holds the token."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        json.dump(content, opened)
    scratch.replace(file)
