"""How much memory an update is predicted to take on each device, told when it takes more than there is.

N weights, of which n are trained, over P processes: 4 N / P bytes of weights, 12 n / P of gradients and AdamW moments;
with P > 1 what is gathered at once (two blocks, and all that is in none). T tokens: in every block about 10 H + 4 I
numbers (H hidden, I intermediate size: inputs of the norms, of attention and of the MLP), or H where blocks are
computed again; logits, their softmax and its gradient. An estimate, to see what is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agentbench_rl.config import LoraConfig, TrainingConfig
from agentbench_rl.policies.loading import policy_names
from agentbench_rl.training.logprobs import HEAD_LOGITS
from agentbench_rl.training.sharding import blocks
from agentbench_rl.training.world import World
from agentbench_rl.types import AgentRLError

_GIB = 2**30


@contextmanager
def memory_errors(policy: Path, policies: int, training: TrainingConfig, world: World) -> Iterator[None]:
    """Turn what torch raises when a device's memory is full into an AgentRLError with a prediction and what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        parts = predicted_peak(policy, policies, training, world.size)
        terms = ", ".join(f"{name} {size / _GIB:.2g}" for name, size in parts.items())
        raise AgentRLError(
            f"out of memory in the update: it was predicted to take about {sum(parts.values()) / _GIB:.2g} GiB on each "
            f"device ({terms}). Nothing that was finished is lost. {_remedies(training, world)} "
            f"({str(error).splitlines()[0]})"
        ) from error


def predicted_peak(policy: Path, policies: int, training: TrainingConfig, processes: int) -> dict[str, float]:
    """Bytes on each device, by what they are for. policy: a policy's directory, or that of `policies` of a team."""
    from transformers import AutoConfig, AutoModelForCausalLM

    names = policy_names(policy)
    config = AutoConfig.from_pretrained(policy / names[0] if names else policy)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    total = sum(value.numel() for value in model.parameters())
    trained = total if training.lora is None else _adapters(model, training.lora)
    parts = {
        "weights": 4.0 * policies * total / processes,
        "gradients and optimizer": 12.0 * policies * trained / processes,
    }
    width = 2 if training.dtype == "bfloat16" else 4
    found = blocks(model)
    block = max(sum(value.numel() for value in one.parameters()) for one in found)
    if processes > 1:
        parts["gathered weights"] = width * (2.0 * block + total - len(found) * block)
    if training.cpu_offload:
        parts = {name: size for name, size in parts.items() if name == "gathered weights"}
    hidden = config.hidden_size
    whole = 10 * hidden + 4 * getattr(config, "intermediate_size", 4 * hidden)
    numbers = len(found) * hidden + whole if training.gradient_checkpointing else len(found) * whole
    tokens = training.micro_batch_tokens
    parts[f"activations of {tokens} tokens"] = float(width * tokens * numbers)
    parts["logits"] = 3.0 * 4 * min(tokens * config.vocab_size, HEAD_LOGITS)
    return parts


def _adapters(model: Any, lora: LoraConfig) -> int:
    """Weights of the adapters, where every linear layer of the chosen names has one."""
    chosen = lora.target_modules
    head = model.get_output_embeddings()
    return sum(
        lora.rank * (module.in_features + module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and (module is not head if isinstance(chosen, str) else name.rpartition(".")[2] in chosen)
    )


def _remedies(training: TrainingConfig, world: World) -> str:
    ways = [f"lower training.micro_batch_tokens (now {training.micro_batch_tokens})"]
    if not training.gradient_checkpointing:
        ways.append("set training.gradient_checkpointing=true")
    if training.dtype == "float32":
        ways.append("set training.dtype=bfloat16")
    ways.append(f"share the update among more processes than {world.size} (torchrun)")
    if training.lora is None:
        ways.append("train adapters (training.lora)")
    if not training.cpu_offload:
        ways.append("set training.cpu_offload=true")
    return f"What helps, in this order: {'; '.join(ways)}."
