"""LoRA: W + alpha / rank · B A in the linear layers of a policy, with W frozen (arXiv 2106.09685), through peft.

B is zero at first, so that a new adapter changes nothing. The adapters' weights belong to the trainer's state; what is
saved as the policy has them added to W. The adapters stand beside it in peft's format, for engines that keep W.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.config import LoraConfig
from agentbench_rl.policies.disk import disk_errors
from agentbench_rl.types import AgentRLError

_ADAPTER = "default"
_PARTS = ("lora_A", "lora_B")


def add_adapters(model: Any, lora: LoraConfig, seed: int) -> None:
    """Put new adapters into a causal LM, in place; A is drawn from the seed.

    Raises AgentRLError without peft, and for target modules that the model does not have.
    """
    try:
        from peft import LoraConfig as Settings
        from peft import inject_adapter_in_model
    except ImportError:
        raise AgentRLError("training.lora needs peft: pip install 'agentbench-rl[lora]'") from None
    chosen = lora.target_modules
    targets = chosen if isinstance(chosen, str) else list(chosen)
    settings = Settings(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, bias="none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
        except ValueError as error:
            raise AgentRLError(f"training.lora.target_modules {targets}: {error}") from None
    model.eval()


def merged(model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model without adapters, with those of the adapters added: W + alpha / rank · B A.

    weights: all of the model's by name; they are changed.
    """
    whole = {name: value for name, value in weights.items() if ".lora_" not in name}
    for name, module in _layers(model):
        first, second = (weights[f"{name}.{part}.{_ADAPTER}.weight"] for part in _PARTS)
        change = module.scaling[_ADAPTER] * (second @ first)
        whole[f"{name}.base_layer.weight"] += change.T if module.fan_in_fan_out else change
    return {name.replace(".base_layer.", "."): value for name, value in whole.items()}


def save_adapter(model: Any, weights: Mapping[str, Tensor], lora: LoraConfig, directory: Path) -> None:
    """Write the adapters as peft does, but for the place of the base; equal adapters give equal bytes.

    weights: the model's by name, those of the adapters among them. Raises OSError when the disk is full or refuses.
    """
    from safetensors.torch import save_file

    names = [name for name, _ in _layers(model)]
    tensors = {
        f"base_model.model.{name}.{part}.weight": weights[f"{name}.{part}.{_ADAPTER}.weight"].contiguous()
        for name in names
        for part in _PARTS
    }
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": sorted({name.rpartition(".")[2] for name in names}),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(module.fan_in_fan_out for _, module in _layers(model)),
        "inference_mode": True,
    }
    directory.mkdir(parents=True)
    with disk_errors(directory):
        (directory / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
        save_file(tensors, directory / "adapter_model.safetensors")


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """The layers that have an adapter, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and _ADAPTER in module.lora_A:
            yield name, module
