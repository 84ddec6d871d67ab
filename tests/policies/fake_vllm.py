"""Stands for vLLM: an engine that decodes greedily with transformers, takes adapters, and keeps what it was told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from peft import PeftModel

from agentbench_rl.policies import vllm as sampler_module
from agentbench_rl.policies.loading import load_policy


@dataclass
class LoRARequest:
    name: str
    lora_int_id: int
    path: str


class FakeLLM:
    """vllm.LLM; `obedient`: whether requests are answered with the adapters that they name."""

    started: ClassVar[list[FakeLLM]]
    obedient = True

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.llm_engine = arguments, self
        self._weights = Path(arguments["model"])
        self._model = load_policy(self._weights)
        self.loads: list[str] = []
        self.adapters: dict[int, Any] = {}
        self.adapter_ids: list[int] = []
        self.sessions: list[str] = []
        self._waiting: list[tuple[str, list[int], Any, LoRARequest | None]] = []
        self.started.append(self)

    def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        assert method == "reload_weights"
        self._weights = Path(kwargs["weights_path"])
        self._model = load_policy(self._weights)
        self.loads.append(kwargs["weights_path"])

    def apply_model(self, function: Any) -> None:
        """Nothing is packed."""

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def add_lora(self, request: LoRARequest) -> None:
        assert not self.adapters, "one at a time"
        self.adapters[request.lora_int_id] = PeftModel.from_pretrained(load_policy(self._weights), request.path)
        self.adapter_ids.append(request.lora_int_id)

    def remove_lora(self, number: int) -> None:
        del self.adapters[number]

    def add_request(self, session: str, prompt: list[int], parameters: Any, lora_request: LoRARequest | None) -> None:
        self._waiting.append((session, prompt, parameters, lora_request))
        self.sessions.append(session)

    def abort_request(self, sessions: Sequence[str]) -> None:
        self._waiting = [one for one in self._waiting if one[0] not in sessions]

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting)

    def step(self) -> list[Any]:
        session, prompt, parameters, adapter = self._waiting.pop()
        model = self.adapters[adapter.lora_int_id] if adapter and self.obedient else self._model
        ids, told = list(prompt), []
        for _ in range(parameters.max_tokens):
            with torch.inference_mode():
                logp = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1).tolist()
            told.append({token: SimpleNamespace(logprob=one) for token, one in enumerate(logp)})
            ids.append(max(range(len(logp)), key=logp.__getitem__))
        output = SimpleNamespace(token_ids=ids[len(prompt) :], logprobs=told, finish_reason="length")
        return [SimpleNamespace(request_id=session, outputs=[output], finished=True)]


def install(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """Put it in the place of vLLM, with no engine started yet."""

    class Fresh(FakeLLM):
        started: ClassVar[list[FakeLLM]] = []

    modules: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": Fresh, "SamplingParams": SimpleNamespace},
        "vllm.inputs": {"tokens_input": lambda ids, cache_salt: ids},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=None)},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sampler_module, "_started", {})
    return Fresh
