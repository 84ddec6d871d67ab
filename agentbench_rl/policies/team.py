"""The sampler of a team whose roles have policies of their own: one sampler per policy, told apart by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agentbench_rl.policies.base import Completion, Sampler, SamplingRequest
from agentbench_rl.policies.loading import policy_path
from agentbench_rl.types import AgentRLError


class TeamSampler(Sampler):
    """Answers every request with the policy that it names, one of `names`.

    make: a sampler for the policy of a name, with room for all requests of a batch, since all may name it. Policies
    that lie in one directory, as at the start of a run, are loaded once and sample in one batch.
    """

    def __init__(self, names: Sequence[str], make: Callable[[str], Sampler]) -> None:
        self._names, self._make = tuple(names), make
        self._samplers: dict[str, Sampler] = {}

    @property
    def entropies_are_lower_bounds(self) -> bool:
        """Whether those of one of the policies are."""
        return any(sampler.entropies_are_lower_bounds for sampler in self._samplers.values())

    def load(self, policy: Path, version: int) -> None:
        """Load a directory that holds the policies of all names, or the one policy that all of them act with.

        Raises AgentRLError for a directory that lacks one of them, and like their samplers.
        """
        self.close()
        loaded: dict[Path, Sampler] = {}
        for name in self._names:
            path = policy_path(policy, name)
            if path not in loaded:
                loaded[path] = self._make(name)
                loaded[path].load(path, version)
            self._samplers[name] = loaded[path]

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one response per request, those of one policy as one batch; returned in the order of the requests.

        Raises AgentRLError for a policy that is not loaded, and like their samplers.
        """
        batches: dict[Sampler, list[int]] = {}
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
