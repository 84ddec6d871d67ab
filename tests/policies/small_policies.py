"""Texts and sizes of the policies that the tests of this directory build."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from agentbench_rl.config import LoraConfig, TinyModel
from agentbench_rl.policies.loading import ADAPTER, BASE, load_policy, load_tokenizer, save_policy
from agentbench_rl.training.adapters import add_adapters, merged, save_adapter

TEXTS = [f"you see a cabinet {i}, a fridge 1 and a drawer {i % 7}.\n> go to fridge {i % 5}" for i in range(60)]
SMALL = TinyModel(hidden_size=32, intermediate_size=64, layers=2, heads=4, max_positions=256)
VOCABULARY = 290


def adapted_policy(base: Path, directory: Path, seed: int, rank: int = 4) -> Path:
    """A policy with random adapters on another one, written as the trainer writes it."""
    lora, model = LoraConfig(rank=rank, alpha=2 * rank), load_policy(base)
    add_adapters(model, lora, seed)
    draw = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(value.shape, generator=draw) / 10 if ".lora_" in name else value.clone()
        for name, value in model.state_dict().items()
    }
    whole: Any = load_policy(base)
    save_adapter(model, weights, lora, directory / ADAPTER)
    whole.load_state_dict(merged(model, weights))
    save_policy(whole, load_tokenizer(base), directory)
    shutil.copytree(base, directory / BASE, copy_function=os.link)
    return directory
