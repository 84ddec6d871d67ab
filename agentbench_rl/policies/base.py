"""The sampler protocol: token ids in; token ids, log-probs and entropies out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """One response to sample.

    `session` names the episode: a sampler may reuse what it cached for the session's previous prompt and response
    as far as `prompt_ids` (always the whole prompt) begins with it. `seed` alone decides the random numbers.
    `temperature` 0 means greedy. Requests of one call that name the same `shared_prompt` have the same `prompt_ids`
    and begin their sessions: a sampler may compute the prompt once for all of them. `policy` names whose weights
    answer, where a sampler holds several policies.
    """

    session: str
    prompt_ids: Sequence[int]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    shared_prompt: str | None = None
    policy: str = "policy"


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled response of T tokens, the end token included when `finished`.

    `logprobs` [T]: log-probs of the tokens under the policy at temperature 1; `entropies` [T]: entropy (nats) of
    the full next-token distribution that each token was drawn from, at temperature 1, or a lower bound of it.
    """

    token_ids: list[int]
    logprobs: list[float]
    entropies: list[float]
    finished: bool


class Sampler(Protocol):
    """Samples responses from the policy that was loaded last."""

    @property
    def entropies_are_lower_bounds(self) -> bool:
        """Whether the engine tells only its most likely tokens, so that `policies.entropies.top_k_entropy` is used."""

    def load(self, policy: Path, version: int) -> None:
        """Load a policy directory; everything cached for earlier weights is dropped."""

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one response per request, in the order of the requests, as one batch."""

    def release(self, session: str) -> None:
        """Forget what is cached for a session; unknown sessions are ignored."""

    def close(self) -> None:
        """Release the engine; idempotent."""


@runtime_checkable
class StreamingSampler(Sampler, Protocol):
    """A sampler that takes requests while it samples others, one per session at a time."""

    def submit(self, request: SamplingRequest) -> None:
        """Take a request; it is sampled by the calls of `step` that follow."""

    def step(self) -> list[tuple[str, Completion]]:
        """Sample a little more, often one token of every request; return (session, completion) of what is done."""
