"""Siblings share their first prompt: it is computed once, and nothing else differs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.types import AgentRLError


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, 290) for _ in range(length)]


def requests(*, shared: bool) -> list[SamplingRequest]:
    """Two trees of siblings, whose prompts differ in length, and two sessions on their own."""
    batch = [
        SamplingRequest(f"{tree}{k}", prompt(tree, 20 + 30 * tree), 4 + k, 10 * tree + k)
        for k in range(3)
        for tree in (1, 2)
    ]
    if shared:
        batch = [replace(one, shared_prompt=one.session[0]) for one in batch]
    return [SamplingRequest("x", prompt(7, 33), 6, 5), *batch, SamplingRequest("y", prompt(8, 9), 6, 6)]


def loaded(policy: Path, slots: int = 8) -> HFSampler:
    sampler = HFSampler(slots=slots, max_context=200)
    sampler.load(policy, 0)
    return sampler


def widths(sampler: HFSampler) -> list[tuple[int, ...]]:
    """Shapes of the ids of all forward passes from now on."""
    seen: list[tuple[int, ...]] = []
    sampler._decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return seen


def same(left: list[Completion], right: list[Completion]) -> None:
    for one, other in zip(left, right, strict=True):
        assert (one.token_ids, one.finished) == (other.token_ids, other.finished)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.entropies == pytest.approx(other.entropies, abs=1e-5)


def test_a_shared_prompt_changes_no_sample_in_its_turn_and_the_next(policy: Path) -> None:
    plain, sharing = loaded(policy), loaded(policy)
    alone, together = plain.generate(requests(shared=False)), sharing.generate(requests(shared=True))
    same(alone, together)
    following = [
        SamplingRequest(one.session, [*one.prompt_ids, *done.token_ids, *prompt(3, 5)], 4, 50 + index)
        for index, (one, done) in enumerate(zip(requests(shared=False), alone, strict=True))
    ]
    same(plain.generate(following), sharing.generate(following))


def test_a_shared_prompt_is_computed_once(policy: Path) -> None:
    sampler = loaded(policy)
    seen = widths(sampler)
    siblings = [SamplingRequest(str(k), prompt(1, 60), 1, k, shared_prompt="tree") for k in range(5)]
    sampler.generate(siblings)
    assert seen == [(1, 60)]


def test_what_is_cached_decides_nothing(policy: Path) -> None:
    """Bits of a batch with shared prompts are those of a fresh sampler, whoever was there before."""
    used, fresh = loaded(policy), loaded(policy)
    used.generate([SamplingRequest("10", prompt(1, 45), 5, 1), SamplingRequest("z", prompt(9, 12), 2, 2)])
    siblings = [one for one in requests(shared=True) if one.shared_prompt]
    assert used.generate(siblings) == fresh.generate(siblings)


def test_another_prompt_under_the_same_name_is_refused(policy: Path) -> None:
    with pytest.raises(AgentRLError, match=r"'b'.*named 'tree'"):
        loaded(policy).generate(
            [SamplingRequest(name, prompt(ord(name), 9), 1, 0, shared_prompt="tree") for name in "ab"]
        )
