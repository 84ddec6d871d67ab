"""A sampler in another process (`policies.server`), found by the file that its server wrote.

A call without an answer is repeated once, on a new connection: seeds decide what is sampled, so it is the same.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from agentbench_rl.policies.base import Completion, SamplingRequest, StreamingSampler
from agentbench_rl.types import AgentRLError, InfrastructureError

Json = dict[str, Any]
_CONNECT_SECONDS = 10.0


class RemoteSampler(StreamingSampler):
    """Samples with the server of a file; it is this sampler's from `load` to `close`, and others wait.

    settings: what the server must sample with. seconds: deadline of every call; waiting for others is not limited.
    Calls raise like the sampler behind the server, and InfrastructureError where the server does not answer.
    """

    #: Files of servers that this process holds: waiting for oneself would have no end.
    _held: ClassVar[set[Path]] = set()

    def __init__(self, file: Path, settings: Json, seconds: float = 1800.0) -> None:
        self._file, self._settings, self._seconds = file.resolve(), settings, seconds
        self._connection: http.client.HTTPConnection | None = None
        self._policy: Json = {}
        self._token = ""
        self._address = ""
        self._pid = 0
        self._lower_bounds = False
        self._submitted: list[Json] = []
        #: Requests that the server samples, by session.
        self._sampling: dict[str, Json] = {}
        self._released: list[str] = []

    @property
    def entropies_are_lower_bounds(self) -> bool:
        """Whether those of the server's sampler are."""
        return self._lower_bounds

    def load(self, policy: Path, version: int) -> None:
        """Wait until no other process samples with the server, and load a policy there.

        Raises AgentRLError where there is no such file, or the server samples with other settings.
        """
        self._policy = {"policy": str(policy.resolve()), "version": version}
        self._sampling.clear()
        try:
            self._hold()
        except _NoAnswerError:
            self._hold()

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one response per request, in the order of the requests, as one batch."""
        asked = [_json(request) for request in requests]
        answer = self._ask("generate", {"requests": asked, "released": self._forgotten()}, {"requests": asked})
        return [Completion(**completion) for completion in answer["completions"]]

    def submit(self, request: SamplingRequest) -> None:
        """Take a request, which goes to the server with the next `step`."""
        self._submitted.append(_json(request))

    def step(self) -> list[tuple[str, Completion]]:
        """Let the server sample a little more, and return what is done."""
        submitted, self._submitted = self._submitted, []
        self._sampling |= {request["session"]: request for request in submitted}
        again = {"requests": list(self._sampling.values())}
        answer = self._ask("step", {"requests": submitted, "released": self._forgotten()}, again)
        for session, _ in answer["done"]:
            del self._sampling[session]
        return [(session, Completion(**completion)) for session, completion in answer["done"]]

    def release(self, session: str) -> None:
        """Forget what is cached for a session, with the next call."""
        self._released.append(session)

    def close(self) -> None:
        """Give the server free; it goes on."""
        self._disconnect()
        self._submitted, self._released = [], []
        self._sampling.clear()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._held.discard(self._file)
        self._connection = None

    def _hold(self) -> None:
        """Have the server's sampler, with the policy loaded, as soon as nobody else has it."""
        if self._connection is None:
            self._connect()
        while (busy := (answer := self._call("load", self._policy)).get("busy")) is not None:
            if busy > 2 * self._seconds:  # what takes longer than one deadline may be done by the second
                self._disconnect()
                raise self._silent(f"has been at one call for {busy:.0f} s")
        self._lower_bounds = bool(answer["entropies_are_lower_bounds"])

    def _connect(self) -> None:
        try:
            told: Json = json.loads(self._file.read_text(encoding="utf-8"))
            host, port = told["address"].split(":")
        except (OSError, ValueError, KeyError) as error:
            raise AgentRLError(
                f"{self._file}: no file of a server ({error}); start one with `agentrl serve POLICY --file "
                f"{self._file}`, or unset AGENTRL_SERVER to sample without"
            ) from None
        found = told["settings"]
        other = [name for name in sorted({*found, *self._settings}) if found.get(name) != self._settings.get(name)]
        if other:
            differences = ", ".join(f"{name} is {found.get(name)}, not {self._settings.get(name)}" for name in other)
            raise AgentRLError(
                f"{self._file}: the server samples with other settings than this experiment ({differences}); start it "
                "with the same experiment and --set, or unset AGENTRL_SERVER"
            )
        if self._file in self._held:
            raise AgentRLError(f"{self._file}: this process samples with the server already, and it has one policy")
        self._token, self._pid, self._address = told["token"], told["pid"], told["address"]
        self._connection = http.client.HTTPConnection(host, int(port), timeout=_CONNECT_SECONDS)
        try:
            self._connection.connect()
        except OSError as error:
            self._connection = None
            raise self._dead(error) from None
        self._connection.sock.settimeout(self._seconds)
        self._held.add(self._file)

    def _ask(self, name: str, arguments: Json, again: Json) -> Json:
        """Call; where no answer came, load the policy again and call with what is asked for `again`."""
        try:
            return self._call(name, arguments)
        except _NoAnswerError:
            self._hold()
            return self._call(name, {"released": []} | again)

    def _call(self, name: str, arguments: Json) -> Json:
        if self._connection is None:
            raise AgentRLError("the sampler has no policy: call load first")
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            self._connection.request("POST", f"/{name}", json.dumps(arguments).encode(), headers)
            response = self._connection.getresponse()
            status, answer = response.status, json.loads(response.read())
        except TimeoutError:
            self._disconnect()
            raise self._silent(f"did not answer a call of {name!r} within {self._seconds:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._disconnect()
            raise _NoAnswerError(str(self._dead(error))) from error
        if status == http.client.OK:
            return dict(answer)
        kind = InfrastructureError if status == http.client.INTERNAL_SERVER_ERROR else AgentRLError
        raise kind(f"{answer['error']} (in the server of {self._file})")

    def _silent(self, what: str) -> InfrastructureError:
        return _NoAnswerError(
            f"the server of {self._file} at {self._address} (process {self._pid}) {what}. If it hangs, end it "
            f"(kill {self._pid}) and start it again with `agentrl serve`; if a call may take so long, raise "
            "rollout.server_seconds. Nothing that was finished is lost: run the same command again"
        )

    def _dead(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            f"the server of {self._file} at {self._address} (process {self._pid}) does not answer: "
            f"{str(error) or type(error).__name__}. "
            f"Nothing that was finished is lost: start it again with `agentrl serve`, or delete the file and unset "
            "AGENTRL_SERVER, and run the same command again"
        )

    def _forgotten(self) -> list[str]:
        released, self._released = self._released, []
        return released


def _json(request: SamplingRequest) -> Json:
    return asdict(request) | {"prompt_ids": list(request.prompt_ids)}


class _NoAnswerError(InfrastructureError):
    """A call may be repeated: nothing is known of what became of it."""
