from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.policies.hf import HFSampler, uniform
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.types import AgentRLError, InfrastructureError

CONTEXT = 200


@pytest.fixture
def sampler(policy: Path) -> HFSampler:
    sampler = HFSampler(slots=4, max_context=CONTEXT)
    sampler.load(policy, 0)
    return sampler


def _prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, 290) for _ in range(length)]


def _requests(turn: int = 0) -> list[SamplingRequest]:
    lengths = [(40, 5), (3, 12), (90, 1), (17, 8)]
    return [SamplingRequest(f"s{i}", _prompt(i, n), m, seed=100 * turn + i) for i, (n, m) in enumerate(lengths)]


def _reference(policy: Path, prompt: list[int], done: Completion) -> torch.Tensor:
    """Log-probs [T, vocabulary] of a plain forward pass at the positions that the response was drawn from."""
    with torch.inference_mode():
        logits = load_policy(policy)(input_ids=torch.tensor([[*prompt, *done.token_ids]])).logits
    return logits[0, len(prompt) - 1 : -1].log_softmax(-1)


def _same(left: Completion, right: Completion) -> None:
    assert left.token_ids == right.token_ids
    assert left.finished == right.finished
    assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)
    assert left.entropies == pytest.approx(right.entropies, abs=1e-4)


def test_logprobs_and_entropies_equal_a_plain_forward_pass_over_several_turns(policy: Path, sampler: HFSampler) -> None:
    histories = {request.session: list(request.prompt_ids) for request in _requests()}
    for turn in range(3):
        requests = [SamplingRequest(s, ids, 2 + 3 * turn, turn, 0.7) for s, ids in histories.items()]
        for request, done in zip(requests, sampler.generate(requests), strict=True):
            logp = _reference(policy, list(request.prompt_ids), done)
            expected = logp.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0].tolist()
            assert done.logprobs == pytest.approx(expected, abs=1e-4)
            assert done.entropies == pytest.approx((-(logp.exp() * logp).sum(-1)).tolist(), abs=1e-4)
            histories[request.session] += [*done.token_ids, *_prompt(turn, 5 + 3 * len(request.session))]


def test_a_token_is_the_inverse_cdf_at_the_hash_of_seed_and_index(policy: Path, sampler: HFSampler) -> None:
    request = SamplingRequest("s", _prompt(1, 9), 12, seed=7, temperature=1.5)
    done = sampler.generate([request])[0]
    cdf = (_reference(policy, list(request.prompt_ids), done).double() / 1.5).softmax(-1).cumsum(-1)
    for index, token in enumerate(done.token_ids):
        low = cdf[index, token - 1] if token else 0.0
        assert low - 1e-5 <= uniform(7, index) <= cdf[index, token] + 1e-5


def test_temperature_zero_is_greedy(policy: Path, sampler: HFSampler) -> None:
    request = SamplingRequest("s", _prompt(2, 20), 8, seed=1, temperature=0.0)
    done = sampler.generate([request])[0]
    assert done.token_ids == _reference(policy, list(request.prompt_ids), done).argmax(-1).tolist()


def test_order_and_company_of_requests_do_not_matter(policy: Path, sampler: HFSampler) -> None:
    together = sampler.generate(_requests())
    reversed_ = HFSampler(slots=9, max_context=CONTEXT)
    reversed_.load(policy, 0)
    backwards = reversed_.generate(_requests()[::-1])[::-1]
    for request, one, other in zip(_requests(), together, backwards, strict=True):
        _same(one, other)
        alone = HFSampler(slots=1, max_context=CONTEXT)
        alone.load(policy, 0)
        _same(one, alone.generate([request])[0])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_was_cached_before_a_response_is_as_if_nothing_was(
    data: st.DataObject, two_samplers: list[HFSampler]
) -> None:
    """Random sessions on too few rows: extended, shortened, rewritten, released and evicted between turns."""
    used, fresh = two_samplers
    histories = {name: _prompt(i, 8) for i, name in enumerate("abcde")}
    for turn in range(4):
        names = data.draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True))
        requests = [SamplingRequest(name, histories[name], 1 + 3 * i, turn) for i, name in enumerate(names)]
        done = used.generate(requests)
        for request, one, other in zip(requests, done, fresh.generate(requests), strict=True):
            _same(one, other)
            change = data.draw(st.sampled_from(["extend", "repeat", "shorten", "rewrite"]))
            prompt = list(request.prompt_ids)
            histories[request.session] = {
                "extend": [*prompt, *one.token_ids, *_prompt(turn, 3)],
                "repeat": prompt,
                "shorten": prompt[: max(1, len(prompt) // 2)],
                "rewrite": [*prompt[:3], *_prompt(turn + 50, 6)],
            }[change]
        used.release(data.draw(st.sampled_from("abcdef")))
        for name in "abcde":
            fresh.release(name)


@pytest.fixture(scope="module")
def two_samplers(policy: Path) -> list[HFSampler]:
    samplers = [HFSampler(slots=3, max_context=100) for _ in range(2)]
    for sampler in samplers:
        sampler.load(policy, 0)
    return samplers


def test_only_new_tokens_are_computed(sampler: HFSampler) -> None:
    computed = []
    sampler._decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: computed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    request = SamplingRequest("s", _prompt(3, 50), 3, seed=0)
    done = sampler.generate([request])[0]
    steps = len(done.token_ids)
    assert computed == [50] + [1] * (steps - 1)
    sampler.generate([SamplingRequest("s", [*request.prompt_ids, *done.token_ids, *_prompt(4, 6)], 1, seed=0)])
    assert computed[steps:] == [7]  # the last sampled token and the six new ones


def test_ended_rows_leave_the_batch_at_once(sampler: HFSampler) -> None:
    rows: list[int] = []
    requests = [SamplingRequest(f"s{i}", _prompt(9, 10), 1 + 2 * i, seed=5) for i in range(4)]
    sampler._decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    lengths = [len(done.token_ids) for done in sampler.generate(requests)]
    assert rows == [sum(length > step for length in lengths) for step in range(max(lengths))]


def test_the_end_token_ends_a_response(policy: Path, tmp_path: Path) -> None:
    model, tokenizer = load_policy(policy), load_tokenizer(policy)
    model.lm_head = torch.nn.Linear(32, len(tokenizer), bias=False)
    model.config.tie_word_embeddings = False
    with torch.no_grad():
        model.lm_head.weight.zero_()  # all tokens equally likely: an end about every 290 tokens
    save_policy(model, tokenizer, tmp_path)
    sampler = HFSampler(slots=64, max_context=CONTEXT)
    sampler.load(tmp_path, 0)
    requests = [SamplingRequest(str(i), [9], 100, seed=i) for i in range(64)]
    done = sampler.generate(requests)
    assert {one.finished for one in done} == {True, False}
    for one in done:
        assert (one.token_ids.index(1) == len(one.token_ids) - 1) if one.finished else (1 not in one.token_ids)


def test_new_weights_are_used_and_nothing_cached_survives(policy: Path, sampler: HFSampler, tmp_path: Path) -> None:
    before = sampler.generate(_requests())
    model = load_policy(policy)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(0.9)
    save_policy(model, load_tokenizer(policy), tmp_path)
    sampler.load(tmp_path, 1)
    for request, old, new in zip(_requests(), before, sampler.generate(_requests()), strict=True):
        expected = _reference(tmp_path, list(request.prompt_ids), new).gather(1, torch.tensor(new.token_ids)[:, None])
        assert new.logprobs == pytest.approx(expected[:, 0].tolist(), abs=1e-4)
        assert old.logprobs != pytest.approx(new.logprobs, abs=1e-3)


def test_a_sampler_that_does_not_use_the_loaded_weights_fails_its_canary(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*arguments: Any) -> Any:
        model = load_policy(*arguments)
        copy = load_policy(*arguments).get_decoder()
        with torch.no_grad():
            copy.layers[0].mlp.up_proj.weight.mul_(1.1)
        monkeypatch.setattr(model, "get_decoder", lambda: copy)
        return model

    monkeypatch.setattr("agentbench_rl.policies.hf.load_policy", stale)
    with pytest.raises(InfrastructureError, match="differ by"):
        HFSampler(slots=2, max_context=CONTEXT).load(policy, 0)


def test_a_prompt_without_room_names_its_session(sampler: HFSampler) -> None:
    with pytest.raises(AgentRLError, match=r"'long'.*200 tokens"):
        sampler.generate([SamplingRequest("ok", [5], 1, 0), SamplingRequest("long", _prompt(0, CONTEXT), 1, 0)])


def test_a_response_stops_unfinished_where_the_context_is_full(policy: Path, sampler: HFSampler) -> None:
    request = SamplingRequest("s", _prompt(0, CONTEXT - 3), 50, seed=0)
    done = sampler.generate([request])[0]
    assert (len(done.token_ids), done.finished) == (3, False)
    expected = _reference(policy, list(request.prompt_ids), done).gather(1, torch.tensor(done.token_ids)[:, None])
    assert done.logprobs == pytest.approx(expected[:, 0].tolist(), abs=1e-4)


def test_batches_that_do_not_fit_are_refused(sampler: HFSampler) -> None:
    with pytest.raises(AgentRLError, match="at most 4"):
        sampler.generate([SamplingRequest(str(i), [5], 1, 0) for i in range(5)])
    with pytest.raises(AgentRLError, match="one per session"):
        sampler.generate([SamplingRequest("s", [5], 1, 0), SamplingRequest("s", [6], 1, 0)])
    sampler.close()
    sampler.close()
    with pytest.raises(AgentRLError, match="call load first"):
        sampler.generate([SamplingRequest("s", [5], 1, 0)])


def test_more_context_than_the_model_has_positions_is_refused(policy: Path) -> None:
    with pytest.raises(AgentRLError, match="256 positions"):
        HFSampler(slots=1, max_context=257).load(policy, 0)


def test_a_sliding_window_is_refused(policy: Path, tmp_path: Path) -> None:
    import json

    copy = shutil.copytree(policy, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "layer_types": ["full_attention", "sliding_attention"]}))
    with pytest.raises(AgentRLError, match="sliding_attention"):
        HFSampler(slots=1, max_context=CONTEXT).load(copy, 0)


def test_a_diverged_policy_is_reported(policy: Path, sampler: HFSampler) -> None:
    with torch.no_grad():
        sampler._head.weight.fill_(float("nan"))
    with pytest.raises(AgentRLError, match="diverged"):
        sampler.generate([SamplingRequest("s", [5, 6], 1, 0)])


def test_random_numbers_are_reproducible_and_spread_evenly() -> None:
    numbers = [uniform(seed, index) for seed in range(50) for index in range(40)]
    assert uniform(3, 4) == 0.10435084488140922
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.02)
    assert len(set(numbers)) == len(numbers)
