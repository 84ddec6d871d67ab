"""Processed (flat) tokens per second of an update: 1M-parameter Llama, sequences of 200-600 tokens, 2 threads.

Run: PYTHONPATH=. python benchmarks/throughput_update.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.loss import TokenClip
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.trainer import update_policy

THREADS, SEQUENCES, REPEATS = 2, 64, 7


def synthetic_rollouts(vocabulary: int, seed: int) -> pd.DataFrame:
    """Chains whose prompts extend their parents: 35 prompt and 5 response tokens per turn."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode, turns in enumerate(rng.integers(5, 16, SEQUENCES)):
        for step in range(turns):
            rows.append(
                {
                    "turn_id": f"{episode}-{step}",
                    "parent_id": f"{episode}-{step - 1}" if step else None,
                    "extends_parent": step > 0,
                    "prompt_ids": rng.integers(0, vocabulary, 35),
                    "response_ids": rng.integers(0, vocabulary, 5),
                    "response_logprobs": np.full(5, -6.9),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    """Print the median and the spread."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=2048, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    rollouts = synthetic_rollouts(1024, seed=0)
    advantages = pd.DataFrame(
        {"turn_id": rollouts["turn_id"], "loss_weight": 1.0, "advantage": np.resize([1.0, -1.0], len(rollouts))}
    )
    training = TrainingConfig(iterations=1, learning_rate=1e-5)
    flat = sum(rollouts["prompt_ids"].map(len)) + sum(rollouts["response_ids"].map(len))
    rates = []
    states: dict[str, TrainerState] = {}
    for iteration in range(REPEATS + 1):
        began = time.perf_counter()
        loss = TokenClip(kl_coefficient=0.0)
        result = update_policy(
            {"policy": model}, states, rollouts, None, advantages, training, loss, "sampler", 0, iteration
        )
        states = result.states
        if iteration:  # the first one warms up
            rates.append(flat / (time.perf_counter() - began))
    step = result.steps[-1]
    print(
        f"update: {statistics.median(rates):,.0f} flat tokens/s (median of {len(rates)}, "
        f"{min(rates):,.0f} to {max(rates):,.0f}), {flat} tokens of {SEQUENCES} sequences, "
        f"{sum(p.numel() for p in model.parameters()):,} parameters, padding {step['padding_share']:.1%}, "
        f"{step['micro_batches']:.0f} micro-batches, {THREADS} threads"
    )


if __name__ == "__main__":
    main()
