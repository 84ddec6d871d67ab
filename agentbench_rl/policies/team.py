"""The sampler of a team whose roles have policies of their own: one sampler per policy, told apart by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentbench_rl.policies.base import Completion, Sampler, SamplingRequest
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import policy_path
from agentbench_rl.types import AgentRLError


class TeamSampler(Sampler):
    """Answers every request with the policy that it names, one of `names`.

    Policies that lie in one directory, as at the start of a run, are loaded once and sample in one batch. Each loaded
    policy has a cache of `slots` sessions, since all requests of a batch may name it.
    """

    entropies_are_lower_bounds = False

    def __init__(
        self, names: Sequence[str], *, slots: int, max_context: int, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        self._names = tuple(names)
        self._make = partial(HFSampler, slots=slots, max_context=max_context, dtype=dtype, device=device)
        self._samplers: dict[str, HFSampler] = {}

    def load(self, policy: Path, version: int) -> None:
        """Load a directory that holds the policies of all names, or the one policy that all of them act with.

        Raises AgentRLError for a directory that lacks one of them, and like `HFSampler.load`.
        """
        self.close()
        loaded: dict[Path, HFSampler] = {}
        for name in self._names:
            path = policy_path(policy, name)
            if path not in loaded:
                loaded[path] = self._make()
                loaded[path].load(path, version)
            self._samplers[name] = loaded[path]

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one response per request, those of one policy as one batch; returned in the order of the requests.

        Raises AgentRLError for a policy that is not loaded, and like `HFSampler.generate`.
        """
        batches: dict[HFSampler, list[int]] = {}
        for place, request in enumerate(requests):
            if request.policy not in self._samplers:
                raise AgentRLError(
                    f"request of session {request.session!r}: policy {request.policy!r} is not loaded, "
                    f"only {', '.join(self._samplers) or 'none'}"
                )
            batches.setdefault(self._samplers[request.policy], []).append(place)
        done: dict[int, Completion] = {}
        for sampler, places in batches.items():
            done |= zip(places, sampler.generate([requests[place] for place in places]), strict=True)
        return [done[place] for place in range(len(requests))]

    def release(self, session: str) -> None:
        """Forget what is cached for a session."""
        for sampler in self._samplers.values():
            sampler.release(session)

    def close(self) -> None:
        """Drop all models and caches."""
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers = {}
