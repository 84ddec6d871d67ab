"""A small Llama-architecture policy built from scratch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentbench_rl.config import TinyModel
from agentbench_rl.types import AgentRLError


def build_policy(
    architecture: TinyModel, tokenizer: Any, seed: int, section: str = "model.architecture"
) -> LlamaForCausalLM:
    """Return a float32 policy with tied embeddings and one output per token of `tokenizer`, a function of `seed`.

    section: where the architecture stands in the configuration.
    Raises AgentRLError when the sizes do not divide, or a head is odd: rotary embeddings turn pairs of its numbers.
    """
    for size, parts in (("hidden_size", "heads"), ("heads", "key_value_heads")):
        if getattr(architecture, size) % getattr(architecture, parts):
            raise AgentRLError(
                f"{section}.{size} {getattr(architecture, size)} must be a multiple of "
                f"{parts} {getattr(architecture, parts)}"
            )
    if architecture.hidden_size // architecture.heads % 2:
        raise AgentRLError(
            f"{section}.hidden_size {architecture.hidden_size} / heads {architecture.heads} is the size of a "
            "head and must be even; change hidden_size or heads"
        )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.key_value_heads,
        max_position_embeddings=architecture.max_positions,
        initializer_range=architecture.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    return model.float().eval()  # type: ignore[no-any-return]
