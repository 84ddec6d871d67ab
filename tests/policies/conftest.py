"""A small tokenizer and random policies, shared by the tests of this directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import SMALL, TEXTS, VOCABULARY
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentbench_rl.policies.loading import save_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import train_tokenizer


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, VOCABULARY)


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def policy(request: pytest.FixtureRequest, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        model: Any = build_policy(SMALL, tokenizer, seed=0)
    else:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 256}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **heads))
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)  # a random policy is nearly uniform; a sharper one makes the tests sensitive
    save_policy(model, tokenizer, directory)
    return directory
