"""Update step by layout: naive rows (padded, full logits), rows, packed rows, prefix trees; and their gradients.

Run: PYTHONPATH=. python benchmarks/update_layouts.py [--repeats 7] [--threads 1] [--out results/benchmarks]

Model: Llama, 6 layers, width 256, vocabulary 1,024, float32, random. Data: rows of the shape that a topology gives, as
`training_sequences` makes sequences of them. A step is forward and backward of sum A logp + 0.01 H over the response
tokens. Layouts take turns; times are processor seconds, the first round warms up. `bound`: flat tokens over tokens
without those that are shared, what sharing could give at most where attention costs nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from agentbench_rl.training.logprobs import token_logprobs
from agentbench_rl.training.packing import Layout, packed_batches, row_batches
from agentbench_rl.training.prefix_tree import auto_batches, tree_batches
from agentbench_rl.training.sequences import Sequence, training_sequences

VOCABULARY, BUDGET = 1024, 8192
SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4}
LAYOUTS: dict[str, Layout] = {
    "rows": row_batches,
    "packed": packed_batches,
    "tree": tree_batches,
    "auto": auto_batches,
}


class Rows:
    """Rows of a rollouts file, as far as the trainer reads them; tokens are random."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []

    def add(self, parent: str | None, prompt: int | np.ndarray, response: int) -> str:
        """A turn below `parent`: new prompt tokens (or the given ones), and a response."""
        ids = prompt if isinstance(prompt, np.ndarray) else self._rng.integers(0, VOCABULARY, prompt)
        turn = f"t{len(self.rows)}"
        self.rows.append(
            {
                "turn_id": turn,
                "parent_id": parent,
                "extends_parent": parent is not None,
                "prompt_ids": ids,
                "response_ids": self._rng.integers(0, VOCABULARY, response),
            }
        )
        return turn

    def chain(self, parent: str | None, turns: int, prompt: int = 40, response: int = 12) -> list[str]:
        """Turns one after the other; returns their ids."""
        path = []
        for _ in range(turns):
            parent = self.add(parent, prompt, response)
            path.append(parent)
        return path


def chains(prompt: int = 40, response: int = 12) -> Rows:
    """Eight episodes of other tasks: nothing to share."""
    rows = Rows(0)
    for turns in (4, 6, 8, 10) * 2:
        rows.chain(None, turns, prompt, response)
    return rows


def group() -> Rows:
    """Eight responses of 64 tokens to one prompt of 384."""
    rows = Rows(1)
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, 384)
    for _ in range(8):
        rows.add(None, prompt, 64)
    return rows


def bpo(trees: int = 2, prompt: int = 40, response: int = 12) -> Rows:
    """Trees: a backbone of ten turns, three branch points with three fresh continuations to the end."""
    rows = Rows(2)
    for _ in range(trees):
        backbone = rows.chain(None, 10, prompt, response)
        for point in (2, 4, 7):
            for _ in range(3):
                rows.chain(backbone[point], 9 - point, prompt, response)
    return rows


def three_spo() -> Rows:
    """A searched tree of 64 responses, eight at a state: most are never continued."""
    rows = Rows(3)
    frontier: list[str | None] = [None]
    for step in range(8):
        state = frontier[-1 - step % 2] if len(frontier) > 1 else frontier[0]
        frontier += [rows.add(state, 40, 12) for _ in range(8)][:2]
    return rows


CASES: dict[str, Callable[[], Rows]] = {
    "chains": chains,
    "group of 8": group,
    "BPO trees": bpo,
    "3SPO trees": three_spo,
}


def naive(model: Any, sequences: list[Sequence], weights: dict[str, float]) -> None:
    """One padded batch, the logits of all its positions."""
    length = max(len(one.token_ids) for one in sequences)
    ids = np.zeros((len(sequences), length), np.int64)
    weight = np.zeros((len(sequences), length), np.float32)
    for row, one in enumerate(sequences):
        ids[row, : len(one.token_ids)] = one.token_ids
        for response in one.responses:
            weight[row, response.start : response.stop] = weights[response.turn_id]
    tokens, scale = torch.from_numpy(ids), torch.from_numpy(weight)[:, 1:]
    table = model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    logp = table.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    entropy = -(table.exp() * table).sum(-1)
    (scale * logp + 0.01 * (scale != 0) * entropy).sum().backward()  # type: ignore[no-untyped-call]


def ours(layout: Layout) -> Callable[[Any, list[Sequence], dict[str, float]], None]:
    """The trainer's log-probs under a layout."""

    def step(model: Any, sequences: list[Sequence], weights: dict[str, float]) -> None:
        for batch in layout(sequences, BUDGET):
            logp, entropy = token_logprobs(model, batch, entropy=True)
            assert entropy is not None
            weight = torch.cat([logp.new_full((s.stop - s.start,), weights[s.turn_id]) for s in batch.spans])
            (weight * logp + 0.01 * entropy).sum().backward()  # type: ignore[no-untyped-call]

    return step


def measure(model: Any, sequences: list[Sequence], repeats: int) -> dict[str, Any]:
    """Median seconds of every layout, and how far its gradient is from the naive one's (relative norm)."""
    rng = np.random.default_rng(0)
    weights = {item.turn_id: float(rng.choice([-1.0, 1.0])) for one in sequences for item in one.responses}
    steps = {"naive": naive} | {name: ours(layout) for name, layout in LAYOUTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    gradients = {}
    for turn in range(repeats + 1):
        for name, step in steps.items():
            model.zero_grad()
            began = time.process_time()
            step(model, sequences, weights)
            if turn:
                seconds[name].append(time.process_time() - began)
            else:
                gradients[name] = torch.cat([part.grad.flatten() for part in model.parameters()]).clone()
    flat = sum(len(one.token_ids) for one in sequences)
    tree = sum(batch.tokens for batch in tree_batches(sequences, BUDGET))
    exact = gradients["naive"]
    return {
        "sequences": len(sequences),
        "flat_tokens": flat,
        "tree_tokens": tree,
        "bound": flat / tree,
        "seconds": {
            name: {"median": statistics.median(s), "min": min(s), "max": max(s)} for name, s in seconds.items()
        },
        "gradient_difference": {
            name: float((gradient - exact).norm() / exact.norm()) for name, gradient in gradients.items()
        },
    }


def main() -> None:
    """Measure all cases, print a table, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, attn_implementation="sdpa", **SIZES))
    results = {}
    table = Table("case", "flat tokens", "bound", "naive s", *(f"{name} ×" for name in LAYOUTS), "gradient difference")
    for name, case in CASES.items():
        found = measure(model, training_sequences(pd.DataFrame(case().rows)), options.repeats)
        results[name] = found
        slow = found["seconds"]["naive"]["median"]
        ratios = [f"{slow / found['seconds'][layout]['median']:.2f}" for layout in LAYOUTS]
        worst = f"{max(found['gradient_difference'].values()):.1e}"
        table.add_row(name, f"{found['flat_tokens']:,}", f"{found['bound']:.2f}", f"{slow:.2f}", *ratios, worst)
    Console(width=120).print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "update_layouts.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
