"""What reaches vLLM's engine: arguments, adapters without their base, replicas; what is refused before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeLLM, install
from small_policies import SMALL, TEXTS, VOCABULARY, adapted_policy
from tiny_experiment import RAW, tiny

from agentbench_rl.config import VllmConfig
from agentbench_rl.policies.base import SamplingRequest
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import train_tokenizer
from agentbench_rl.policies.vllm import VLLMSampler
from agentbench_rl.policies.vllm_engine import Engine, engine_arguments
from agentbench_rl.stages.sampling import local_sampler
from agentbench_rl.types import AgentRLError, InfrastructureError


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    root = tmp_path_factory.mktemp("bases")
    for seed in range(2):
        save_policy(build_policy(SMALL, tokenizer, seed), tokenizer, root / str(seed))
    return [root / "0", root / "1"]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    return install(monkeypatch)


def sampler(lora_rank: int | None = None, device: str = "cpu", **engine: Any) -> VLLMSampler:
    return VLLMSampler(slots=3, max_context=100, engine=VllmConfig(**engine), lora_rank=lora_rank, device=device)


def test_settings_are_the_engines_arguments(llm: type[FakeLLM], bases: list[Path]) -> None:
    sampler(tensor_parallel=2, gpu_memory=0.7).load(bases[0], 0)
    (engine,) = llm.started
    wanted = {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.7, "max_model_len": 100, "max_num_seqs": 3}
    wanted |= {"model": str(bases[0]), "dtype": "float32", "enable_prefix_caching": True}
    assert wanted.items() <= engine.arguments.items()
    assert "enable_lora" not in engine.arguments


@pytest.mark.parametrize("told_before", [True, False])
def test_adapters_are_loaded_under_new_ids_and_their_base_is_left_alone(
    llm: type[FakeLLM], bases: list[Path], tmp_path: Path, told_before: bool
) -> None:
    adapted = [adapted_policy(bases[0], tmp_path / str(seed), seed) for seed in range(2)]
    one = sampler(lora_rank=4 if told_before else None)
    if told_before:
        one.load(bases[0], 0)  # whose engine takes adapters already
    for version, policy in enumerate([*adapted, adapted[0]], 1):
        one.load(policy, version)
    (engine,) = llm.started
    assert engine.arguments["max_lora_rank"] == 8
    assert engine.arguments["enable_lora"]
    assert engine.adapter_ids == [1, 2, 3]
    assert engine.loads == []
    one.load(bases[1], 4)
    assert engine.loads == [str(bases[1])]
    one.load(adapted[1], 5)
    assert engine.loads == [str(bases[1]), str(adapted[1] / "base")]


def test_an_engine_that_ignores_adapters_fails_its_canary(
    llm: type[FakeLLM], bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm, "obedient", False)
    with pytest.raises(InfrastructureError, match="does not use these weights"):
        sampler().load(adapted_policy(bases[0], tmp_path / "adapted", 0), 0)


def test_a_replica_that_keeps_old_weights_fails_its_canary(
    llm: type[FakeLLM], bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sampler(data_parallel=2)
    for number in range(2):
        one.load(bases[0], 0)
        with monkeypatch.context() as patch:
            patch.setattr(llm.started[number], "collective_rpc", lambda *_, **__: None)
            with pytest.raises(InfrastructureError, match="does not use these weights"):
                one.load(bases[1], 1)


@pytest.mark.parametrize("again", [1, 2])
def test_weights_that_moved_by_less_than_rounding_may_are_told_from_the_old_ones(
    llm: type[FakeLLM], bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """As after a step of a small learning rate; however often the load is tried."""
    moved: Any = load_policy(bases[0])
    with torch.no_grad():
        moved.get_output_embeddings().weight.mul_(1.002)
    save_policy(moved, load_tokenizer(bases[0]), tmp_path)
    one = sampler()
    one.load(bases[0], 0)
    with monkeypatch.context() as patch:
        patch.setattr(llm.started[0], "collective_rpc", lambda *_, **__: None)
        for _ in range(again):
            with pytest.raises(InfrastructureError, match="still those of the policy before"):
                one.load(tmp_path, 1)
    one.load(bases[0], 2)
    one.load(tmp_path, 3)
    one.load(tmp_path, 4)
    assert llm.started[0].loads == [str(bases[0]), str(tmp_path)]


def test_without_adapters_whole_policies_are_loaded(llm: type[FakeLLM], bases: list[Path], tmp_path: Path) -> None:
    one = sampler(lora_rank=4, adapters=False)
    one.load(bases[0], 0)
    adapted = adapted_policy(bases[0], tmp_path / "adapted", 0)
    one.load(adapted, 1)
    (engine,) = llm.started
    assert (engine.loads, engine.adapter_ids) == ([str(adapted)], [])
    assert "enable_lora" not in engine.arguments


def test_a_session_stays_with_one_of_the_replicas(llm: type[FakeLLM], bases: list[Path]) -> None:
    one = sampler(data_parallel=2)
    one.load(bases[0], 0)
    one.load(bases[1], 1)
    asked = [SamplingRequest(f"s{number % 8}", [5, 6, 7 + number], 2, 0) for number in range(8)]
    for _ in range(2):
        done = one.generate(asked)
    alone = sampler()
    alone.load(bases[1], 1)
    assert [answer.token_ids for answer in done] == [answer.token_ids for answer in alone.generate(asked)]
    first, second, _ = ([name for name in engine.sessions if not name.startswith("canary")] for engine in llm.started)
    assert sorted(set(first) | set(second)) == [f"s{number}" for number in range(8)]
    assert not set(first) & set(second)
    assert [engine.loads for engine in llm.started[:2]] == [[str(bases[1])]] * 2


def shaped(directory: Path, **sizes: int) -> Path:
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    save_policy(build_policy(SMALL.model_copy(update=sizes), tokenizer, 0), tokenizer, directory)
    return directory


@pytest.mark.parametrize(
    ("sizes", "count", "message"),
    [
        ({}, 3, r"tensor_parallel 3: num_attention_heads 4 of .* what can: 1, 2$"),
        ({"intermediate_size": 66}, 4, r"tensor_parallel 4: intermediate_size 66 of .* what can: 1, 2$"),
        ({"hidden_size": 48, "heads": 6, "key_value_heads": 2, "intermediate_size": 96}, 3, r"num_key_value_heads 2"),
    ],
)
def test_devices_that_do_not_divide_a_policy_are_refused_before_the_engine_starts(
    llm: type[FakeLLM], tmp_path: Path, sizes: dict[str, int], count: int, message: str
) -> None:
    policy = shaped(tmp_path / "policy", **sizes)
    with pytest.raises(AgentRLError, match=message):
        sampler(tensor_parallel=count).load(policy, 0)
    assert llm.started == []


def test_more_devices_than_there_are_are_refused(
    llm: type[FakeLLM], bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(AgentRLError, match=r"tensor_parallel 2 times data_parallel 2 needs 4 GPUs, and torch finds 3"):
        sampler(device="cuda", tensor_parallel=2, data_parallel=2).load(bases[0], 0)
    assert llm.started == []


def test_every_replica_sees_devices_of_its_own(
    llm: type[FakeLLM], bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    begin: Callable[..., None] = llm.__init__

    def noted(self: FakeLLM, **arguments: Any) -> None:
        seen.append((os.environ["CUDA_VISIBLE_DEVICES"], os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]))
        begin(self, **arguments)

    monkeypatch.setattr(llm, "__init__", noted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    settings = VllmConfig(tensor_parallel=2, data_parallel=2)
    Engine(engine_arguments(bases[0], settings, slots=1, max_context=9, device="cuda"), settings, "cuda")
    assert seen == [("4,5", "1"), ("6,7", "1")]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


def test_a_rank_beyond_the_engines_is_told(llm: type[FakeLLM], bases: list[Path]) -> None:
    with pytest.raises(AgentRLError, match=r"training\.lora\.rank 600: .* up to rank 512.*rollout\.vllm\.adapters"):
        sampler(lora_rank=600).load(bases[0], 0)


def test_the_stages_tell_the_sampler_of_the_adapters_to_come() -> None:
    experiment = tiny(training=RAW["training"] | {"lora": {"rank": 3}}, rollout=RAW["rollout"] | {"sampler": "vllm"})
    made = local_sampler(experiment)
    assert isinstance(made, VLLMSampler)
    assert made._lora_rank == 3
