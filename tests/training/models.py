"""Tiny random models and rollouts shared by the training tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attn_implementation": "sdpa",
    "initializer_range": 0.3,
}


def tiny_model(kind: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A random model whose distributions are far from uniform.

    Norms of `llama` and `qwen2` are computed in float32 whatever the dtype; `gpt2` has float64 throughout.
    """
    torch.manual_seed(seed)
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
        sizes |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        config = GPT2Config(vocab_size=VOCABULARY, attn_implementation="sdpa", **sizes)
        return GPT2LMHeadModel(config).to(dtype)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype)
    if kind == "tied":
        return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)).to(dtype)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE)).to(dtype)


def chains(turns: list[int], seed: int = 0, extends: bool = True) -> pd.DataFrame:
    """One chain per entry, with that many turns of random length (responses may be empty)."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode, count in enumerate(turns):
        for step in range(count):
            size = int(rng.integers(0, 6))
            rows.append(
                {
                    "turn_id": f"e{episode}-{step}",
                    "parent_id": f"e{episode}-{step - 1}" if step else None,
                    "extends_parent": extends and step > 0,
                    "prompt_ids": rng.integers(0, VOCABULARY, int(rng.integers(1, 9))),
                    "response_ids": rng.integers(0, VOCABULARY, size),
                    "response_logprobs": -4 - rng.random(size),
                }
            )
    return pd.DataFrame(rows)
