"""How much memory an update is predicted to take on each device, told when it takes more than there is.

N weights, of which n are trained, over P processes: 4 N / P bytes of weights, 12 n / P of gradients and AdamW moments;
with P > 1 what is gathered at once (two blocks, and all that is in none). T tokens: in every block about 10 H + 4 I
numbers (H hidden, I intermediate size: inputs of the norms, of attention and of the MLP), or H where blocks are
computed again; the logits of a chunk, of which five tensors are alive at once (their softmax and gradients). Scoring
keeps one block's numbers, and neither gradients nor moments. On a CPU, in float32, measured updates take this within
30 %: an estimate, to see what is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from agentbench_rl.config import LoraConfig, TrainingConfig
from agentbench_rl.policies.loading import policy_names
from agentbench_rl.training.logprobs import HEAD_LOGITS
from agentbench_rl.training.sharding import blocks
from agentbench_rl.training.world import World
from agentbench_rl.types import AgentRLError

Work = Literal["update", "scoring", "behaviour cloning"]
_GIB = 2**30
_FULL_CPU = "DefaultCPUAllocator: can't allocate memory"


@contextmanager
def memory_errors(work: Work, policy: Any, policies: int, training: TrainingConfig, world: World) -> Iterator[None]:
    """Turn what torch raises when a device's memory is full into an AgentRLError with a prediction and what to do.

    policy: a policy's directory, that of `policies` of a team, or the configuration of a model.
    """
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or _FULL_CPU in str(error)):
            raise
        parts = predicted_peak(work, policy, policies, training, world.size)
        terms = ", ".join(f"{name} {size / _GIB:.2g}" for name, size in parts.items())
        raise AgentRLError(
            f"out of memory in the {work}: it was predicted to take about {sum(parts.values()) / _GIB:.2g} GiB on each "
            f"device ({terms}). Nothing that was finished is lost. {_remedies(work, training, world)} "
            f"({str(error).splitlines()[0]})"
        ) from error


def predicted_peak(
    work: Work, policy: Any, policies: int, training: TrainingConfig, processes: int
) -> dict[str, float]:
    """Bytes on each device, by what they are for; `policy` as in `memory_errors`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = policy
    if isinstance(policy, Path):
        names = policy_names(policy)
        config = AutoConfig.from_pretrained(policy / names[0] if names else policy)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    total = sum(value.numel() for value in model.parameters())
    trained = total if training.lora is None else _adapters(model, training.lora)
    parts = {"weights": 4.0 * policies * total / processes}
    if work != "scoring":
        parts["gradients and optimizer"] = 12.0 * policies * trained / processes
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
    numbers = whole if work == "scoring" else numbers
    tokens = training.micro_batch_tokens
    parts[f"activations of {tokens} tokens"] = float(width * tokens * numbers)
    parts["logits"] = 5.0 * 4 * min(tokens * config.vocab_size, HEAD_LOGITS)
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


def _remedies(work: Work, training: TrainingConfig, world: World) -> str:
    limit = "sft.batch_tokens" if work == "behaviour cloning" else "training.micro_batch_tokens"
    ways = [f"lower {limit} (now {training.micro_batch_tokens})"]
    if work != "scoring" and not training.gradient_checkpointing:
        ways.append("set training.gradient_checkpointing=true")
    if work != "behaviour cloning" and training.dtype == "float32":
        ways.append("set training.dtype=bfloat16")
    ways.append(f"share the {work} among more processes than {world.size} (torchrun)")
    if work == "update" and training.lora is None:
        ways.append("train adapters (training.lora)")
    if not training.cpu_offload:
        ways.append("set training.cpu_offload=true (torchrun)")
    return f"What helps, in this order: {'; '.join(ways)}."
