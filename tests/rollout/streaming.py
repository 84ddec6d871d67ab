"""Lets the scripted samplers of these tests take requests at any time, and plays with them without a barrier."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.rollout import continuous
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec


class Streaming:
    """Answers a random part of the requests that wait, with what a scripted sampler says to each alone."""

    def __init__(self, sampler: Any, seed: int = 0) -> None:
        self._sampler, self._draw = sampler, random.Random(seed)
        self._waiting: list[SamplingRequest] = []

    def submit(self, request: SamplingRequest) -> None:
        assert request.session not in {other.session for other in self._waiting}
        self._waiting.append(request)

    def step(self) -> list[tuple[str, Completion]]:
        assert self._waiting, "the engine was asked for a step with nothing to sample"
        chosen = [request for request in self._waiting if self._draw.random() < 0.5]
        self._waiting = [request for request in self._waiting if request not in chosen]
        return [(request.session, self._sampler.generate([request])[0]) for request in chosen]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def collect_continuously(specs: Sequence[EpisodeSpec], sampler: Any, *others: Any, **settings: Any) -> Rollouts:
    """`continuous.collect` with a sampler that answers in any order."""
    return continuous.collect(specs, Streaming(sampler), *others, **settings)
