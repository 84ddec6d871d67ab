"""LoRA: W + alpha / rank · B A in the linear layers of a policy, with W frozen (arXiv 2106.09685), through peft.

B is zero at first, so that a new adapter changes nothing. The adapters' weights belong to the trainer's state; what is
saved as the policy has them added to W.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.config import LoraConfig
from agentbench_rl.types import AgentRLError

_ADAPTER = "default"


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
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and _ADAPTER in module.lora_A:
            first, second = (weights[f"{name}.{part}.{_ADAPTER}.weight"] for part in ("lora_A", "lora_B"))
            change = module.scaling[_ADAPTER] * (second @ first)
            whole[f"{name}.base_layer.weight"] += change.T if module.fan_in_fan_out else change
    return {name.replace(".base_layer.", "."): value for name, value in whole.items()}
