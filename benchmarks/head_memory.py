"""Peak memory of an update's log-probs and entropies over a large vocabulary: full logits, and the head in chunks.

Run: PYTHONPATH=. python benchmarks/head_memory.py [--repeats 3] [--tokens 3072] [--out results/benchmarks]

Model: Llama, one layer of width 64, tied embeddings, float32, random: next to nothing but its vocabulary. One sequence,
all of whose tokens are trained: log-probs, entropies, their gradients. `full`: log-softmax of the logits of all
positions. `unchunked`: the package's head on all positions at once. `chunks`: as it is (`HEAD_LOGITS`). Every step runs
in a process of its own, whose peak resident memory is told whole; `baseline` is what it was before the step, with
Python, torch and the model in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from agentbench_rl.training import logprobs
from agentbench_rl.training.packing import row_batches
from agentbench_rl.training.sequences import Response, Sequence

VARIANTS = ("full", "unchunked", "chunks")
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def peak() -> float:
    """Peak resident memory of this process so far, MiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def full(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of all tokens from the full logits."""
    table = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    return table.gather(-1, ids[:, 1:, None]).squeeze(-1), -(table.exp() * table).sum(-1)


def step(variant: str, tokens: int, vocabulary: int) -> dict[str, float]:
    """One step in this process: memory before it, peak memory, norm of the gradient."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=True, attn_implementation="sdpa", **SIZES)
    )
    ids = np.random.default_rng(0).integers(0, vocabulary, tokens + 1)
    before = peak()
    if variant == "full":
        logp, entropy = full(model, torch.from_numpy(ids)[None])
    else:
        if variant == "unchunked":
            logprobs.HEAD_LOGITS = tokens * vocabulary
        (batch,) = row_batches([Sequence(ids, (Response("a", 1, tokens + 1),))], tokens + 1)
        logp, found = logprobs.token_logprobs(model, batch, entropy=True)
        assert found is not None
        entropy = found
    (logp.sum() + 0.01 * entropy.sum()).backward()  # type: ignore[no-untyped-call]
    norm = torch.cat([part.grad.flatten() for part in model.parameters()]).norm()
    return {"baseline_mib": before, "peak_mib": peak(), "gradient_norm": float(norm)}


def child(variant: str, options: argparse.Namespace) -> dict[str, float]:
    """`step` in a new process."""
    sizes = ["--tokens", str(options.tokens), "--vocabulary", str(options.vocabulary)]
    command = [sys.executable, __file__, "--variant", variant, *sizes]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run all variants in turn, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(step(options.variant, options.tokens, options.vocabulary)))
        return
    runs = [{variant: child(variant, options) for variant in VARIANTS} for _ in range(options.repeats)]
    medians = {
        variant: {name: statistics.median(run[variant][name] for run in runs) for name in runs[0][variant]}
        for variant in VARIANTS
    }
    shares = {variant: found["peak_mib"] / medians["full"]["peak_mib"] for variant, found in medians.items()}
    table = Table("head", "baseline, MiB", "peak, MiB", "of full", "gradient norm")
    for variant, found in medians.items():
        memory = (f"{found['baseline_mib']:,.0f}", f"{found['peak_mib']:,.0f}", f"{shares[variant]:.0%}")
        table.add_row(variant, *memory, f"{found['gradient_norm']:.7g}")
    Console(width=100).print(table)
    settings = {"tokens": options.tokens, "vocabulary": options.vocabulary, "repeats": options.repeats}
    result = {"settings": settings, "medians": medians, "share_of_full": shares, "runs": runs}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "head_memory.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
