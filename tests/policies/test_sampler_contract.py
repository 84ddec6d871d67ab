"""What every sampler promises: token ids in and out, exact log-probs at temperature 1, seeds, new weights at once."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import TEXTS, VOCABULARY, adapted_policy

from agentbench_rl.config import TinyModel, VllmConfig
from agentbench_rl.policies.base import Completion, Sampler, SamplingRequest, StreamingSampler
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.policies.remote import RemoteSampler
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import train_tokenizer
from agentbench_rl.policies.vllm import VLLMSampler
from agentbench_rl.policies.vllm_engine import Engine
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.sampling import sampling_settings
from agentbench_rl.types import AgentRLError, InfrastructureError

CONTEXT = 200
#: vLLM's attention on a CPU wants heads of at least 32 dimensions.
SHAPE = TinyModel(hidden_size=64, intermediate_size=96, layers=2, heads=2, max_positions=256, initializer_range=0.15)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two policies of the same shape."""
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    root = tmp_path_factory.mktemp("policies")
    for seed in range(2):
        save_policy(build_policy(SHAPE, tokenizer, seed), tokenizer, root / str(seed))
    return [root / "0", root / "1"]


@contextmanager
def served(kind: str, policy: Path, directory: Path) -> Iterator[tuple[RemoteSampler, subprocess.Popen[bytes]]]:
    """A sampler behind a server, and the server."""
    sets = [f"rollout.{name}" for name in ("batch_slots=8", f"max_context_tokens={CONTEXT}", "vllm.cpu_cache_gb=1")]
    options = [part for each in sets for part in ("--set", each)] + ["--sampler", kind]
    file = directory / "server.json"
    command = [sys.executable, "-m", "agentbench_rl", "serve", str(policy), "--file", str(file), *options]
    process = subprocess.Popen(command)
    try:
        until = time.monotonic() + 300.0
        while not file.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        settings = sampling_settings(load_experiment("quickstart", [*sets, f"rollout.sampler={kind}"]))
        yield RemoteSampler(file, settings), process
    finally:
        process.terminate()
        process.wait(60.0)


@pytest.fixture(
    scope="module",
    params=["hf", "hf-served", *(pytest.param(kind, marks=pytest.mark.extras) for kind in ("vllm-served", "vllm"))],
)
def sampler(
    request: pytest.FixtureRequest, policies: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sampler]:
    """One sampler for the whole file: an engine is started once and loaded again and again."""
    if request.param.startswith("vllm"):
        pytest.importorskip("vllm")
    if request.param.endswith("-served"):
        kind = request.param.removesuffix("-served")
        directory = tmp_path_factory.mktemp("server")
        with served(kind, policies[0], directory) as (remote, server):
            yield remote
            remote.close()
            server.terminate()
            assert server.wait(60.0) == 0
            assert not (directory / "server.json").exists()
        return
    if request.param == "hf":
        yield HFSampler(slots=8, max_context=CONTEXT)
        return
    started = VLLMSampler(slots=8, max_context=CONTEXT, engine=VllmConfig(cpu_cache_gb=1))
    yield started
    started.close()


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, VOCABULARY) for _ in range(length)]


def requests(temperature: float = 1.0) -> list[SamplingRequest]:
    lengths = [(40, 9), (3, 12), (90, 1), (17, 8), (40, 9)]
    return [SamplingRequest(f"s{i}", prompt(i % 4, n), m, 10 + i, temperature) for i, (n, m) in enumerate(lengths)]


def distributions(policy: Path, request: SamplingRequest, done: Completion) -> torch.Tensor:
    """Log-probs [T, vocabulary] of a plain forward pass at the positions that the response was drawn from."""
    ids = [*request.prompt_ids, *done.token_ids]
    with torch.inference_mode():
        logits = load_policy(policy)(input_ids=torch.tensor([ids])).logits
    return logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)


def assert_faithful(policy: Path, asked: list[SamplingRequest], done: list[Completion]) -> None:
    for request, one in zip(asked, done, strict=True):
        logp = distributions(policy, request, one)
        expected = logp.gather(1, torch.tensor(one.token_ids)[:, None])[:, 0].tolist()
        assert one.logprobs == pytest.approx(expected, abs=1e-4)
        assert one.entropies == pytest.approx(torch.special.entr(logp.exp()).sum(-1).tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_and_entropies_are_those_of_the_trainer_at_temperature_1(
    sampler: Sampler, policies: list[Path], temperature: float
) -> None:
    sampler.load(policies[0], 0)
    asked = requests(temperature)
    assert_faithful(policies[0], asked, sampler.generate(asked))


def test_temperature_zero_is_greedy(sampler: Sampler, policies: list[Path]) -> None:
    sampler.load(policies[0], 0)
    (request, *_) = requests(0.0)
    (done,) = sampler.generate([request])
    assert done.token_ids == distributions(policies[0], request, done).argmax(-1).tolist()


def test_a_seed_decides_a_response_whatever_shares_its_batch(sampler: Sampler, policies: list[Path]) -> None:
    sampler.load(policies[0], 0)
    together = sampler.generate(requests())
    backwards = sampler.generate(requests()[::-1])[::-1]
    alone = [sampler.generate([request])[0] for request in requests()]
    for one, other, single in zip(together, backwards, alone, strict=True):
        assert one.token_ids == other.token_ids == single.token_ids
    assert together[0].token_ids != together[4].token_ids  # the same prompt, another seed


def test_new_weights_are_used_at_once_and_nothing_cached_survives(sampler: Sampler, policies: list[Path]) -> None:
    for version in range(4):
        sampler.load(policies[version % 2], version)
        asked = requests()
        assert_faithful(policies[version % 2], asked, sampler.generate(asked))


def test_policies_trained_by_adapters_are_sampled_as_what_they_are(
    sampler: Sampler, policies: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    first, second = (adapted_policy(policies[0], tmp_path / f"{seed}", seed) for seed in range(2))
    for version, policy in enumerate((policies[0], first, second, first, policies[1])):
        sampler.load(policy, version)
        asked = requests()
        assert_faithful(policy, asked, sampler.generate(asked))


def test_a_longer_prompt_of_a_session_continues_it(sampler: Sampler, policies: list[Path]) -> None:
    sampler.load(policies[0], 0)
    history = prompt(1, 20)
    for turn in range(3):
        request = SamplingRequest("s", list(history), 5, seed=turn)
        (done,) = sampler.generate([request])
        assert_faithful(policies[0], [request], [done])
        history += [*done.token_ids, *prompt(turn, 4)]


def test_the_end_token_ends_a_response_and_is_part_of_it(
    sampler: Sampler, policies: list[Path], tmp_path: Path
) -> None:
    model: Any = load_policy(policies[0])
    with torch.no_grad():
        model.model.norm.weight.zero_()  # all tokens equally likely: an end about every 290 tokens
    save_policy(model, load_tokenizer(policies[0]), tmp_path)
    sampler.load(tmp_path, 0)
    done = [one for seed in range(16) for one in sampler.generate([SamplingRequest(f"{seed}", [9], 150, seed)])]
    assert {one.finished for one in done} == {True, False}
    for one in done:
        assert one.entropies == pytest.approx([math.log(VOCABULARY)] * len(one.token_ids), abs=1e-3)
        assert (one.token_ids.index(1) == len(one.token_ids) - 1) if one.finished else (1 not in one.token_ids)


def test_a_response_stops_unfinished_where_the_context_is_full(sampler: Sampler, policies: list[Path]) -> None:
    sampler.load(policies[0], 0)
    request = SamplingRequest("s", prompt(0, CONTEXT - 3), 50, seed=0)
    (done,) = sampler.generate([request])
    assert (len(done.token_ids), done.finished) == (3, False)


def test_a_prompt_without_room_names_its_session(sampler: Sampler, policies: list[Path]) -> None:
    sampler.load(policies[0], 0)
    with pytest.raises(AgentRLError, match=r"'long'.*200 tokens"):
        sampler.generate([SamplingRequest("ok", [5], 1, 0), SamplingRequest("long", prompt(0, CONTEXT), 1, 0)])


@pytest.mark.extras
def test_requests_may_come_while_others_are_sampled(
    sampler: StreamingSampler, policies: list[Path], request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["sampler"].startswith("hf"):
        pytest.skip("this sampler takes no requests while it samples")
    sampler.load(policies[0], 0)
    asked = requests()
    expected = dict(zip([one.session for one in asked], sampler.generate(asked), strict=True))
    found: dict[str, Completion] = {}
    for one in asked:
        sampler.submit(one)
        found |= sampler.step()
    while len(found) < len(asked):
        found |= sampler.step()
    assert {name: one.token_ids for name, one in found.items()} == {k: one.token_ids for k, one in expected.items()}
    assert_faithful(policies[0], asked, [found[one.session] for one in asked])


@pytest.mark.extras
def test_an_engine_is_started_once_in_a_process(policies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    first = VLLMSampler(slots=8, max_context=CONTEXT, engine=VllmConfig(cpu_cache_gb=1))
    first.load(policies[0], 0)
    first.close()
    monkeypatch.setattr(Engine, "__init__", None)
    second = VLLMSampler(slots=8, max_context=CONTEXT, engine=VllmConfig(cpu_cache_gb=1))
    second.load(policies[1], 1)
    assert_faithful(policies[1], requests(), second.generate(requests()))


@pytest.mark.extras
def test_an_engine_that_keeps_old_weights_fails_its_canary(
    policies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    engine = VLLMSampler(slots=8, max_context=CONTEXT, engine=VllmConfig(cpu_cache_gb=1))
    engine.load(policies[0], 0)
    assert engine._engine is not None
    (replica,) = engine._engine._replicas
    monkeypatch.setattr(replica, "collective_rpc", lambda *arguments, **named: None)
    with pytest.raises(InfrastructureError, match="does not use these weights"):
        engine.load(policies[1], 1)
    engine.load(policies[0], 2)


@pytest.mark.extras
def test_two_replicas_answer_as_one_engine_does(policies: list[Path]) -> None:
    pytest.importorskip("vllm")
    engine = VLLMSampler(slots=8, max_context=CONTEXT, engine=VllmConfig(cpu_cache_gb=1, data_parallel=2))
    for version in range(2):
        engine.load(policies[version], version)
        assert_faithful(policies[version], requests(), engine.generate(requests()))
    engine.close()


def test_a_missing_engine_is_named(policies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(AgentRLError, match="extra vllm"):
        VLLMSampler(slots=8, max_context=CONTEXT, engine=VllmConfig()).load(policies[0], 0)
