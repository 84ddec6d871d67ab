"""One GPU: sample with the `hf` sampler and update a Qwen2 of 0.5B parameters in bfloat16, prefix trees beside rows.

Run: PYTHONPATH=. python benchmarks/gpu.py [--minutes 8] [--repeats 5] [--out results/benchmarks/gpu.json]
Try it: PYTHONPATH=. python benchmarks/gpu.py --device cpu --tiny

The model is built here, with random weights. `check`: gradients of a small model in float32, of every layout on the
device, against the dense mask on the CPU. `sampling`: groups of responses to shared prompts. Then updates by layout, as
`update_policy` makes them (AdamW over float32 weights, autocast to bfloat16): `groups`, on what was sampled; `trees`
and `chains`, on branched and on unlike episodes of random tokens. On a GPU rows of several sequences take
FlexAttention's block-sparse masks, on a CPU dense ones; a sequence alone in its row needs none, and where all are
equally long, `packed` is `rows`. `groups_gradient`: how far layouts are apart in bfloat16, with the large model.

Each layout first makes one update that is not counted (kernels are compiled); then follow timed ones, synchronised
before and after. Flat tokens are those of the sequences, however often they are computed. MFU: floating-point
operations of forward and backward pass that the computed tokens need (6 per weight and token, attention by what a token
sees, the head for trained tokens; nothing for padding and recomputation) per second, over the device's dense bfloat16
peak. Memory: the largest allocated by torch in the timed updates.

The file is written after every part. What does not fit into the minutes is left out and listed as `skipped`; a part
that began is finished, with fewer repeats. Where memory is short: --micro-batch-tokens.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from update_layouts import bpo, chains, group

from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.loss import TokenClip
from agentbench_rl.policies.base import SamplingRequest
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import load_policy, save_policy
from agentbench_rl.policies.tokenisation import train_tokenizer
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.gradients import accumulate_gradients
from agentbench_rl.training.logprobs import block_sparse
from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.training.prefix_tree import LAYOUTS
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.signals import training_signals
from agentbench_rl.training.trainer import update_policy

COMPARED: tuple[Literal["rows", "packed", "tree"], ...] = ("rows", "packed", "tree")
LOSS = TokenClip(kl_coefficient=0.0)
#: Relative norm of the gradients' difference: in float32 that of another order of sums, in bfloat16 of its rounding.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
#: Dense bfloat16 peak of tensor cores with float32 sums, in TFLOP/s, from NVIDIA's data sheets; the first that fits.
PEAKS = {
    "GH200": 989, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H800": 989, "B200": 2250,
    "A100": 312, "A800": 312, "A40": 150, "A10": 125, "L40S": 362, "L4": 121, "RTX 4090": 165,
}  # fmt: skip
RESERVE = 0.12  # a part begins only where at least this share of the time is left


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model, of groups of responses to one prompt, of branched trees; a turn's prompt and response."""

    model: dict[str, Any]
    groups: int
    members: int
    prompt: int
    response: int
    trees: int
    turn: tuple[int, int]
    micro_batch_tokens: int


def architecture(hidden: int, intermediate: int, layers: int, heads: int, vocabulary: int) -> dict[str, Any]:
    """Sizes of a Qwen2 with two key-value heads."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    values = (hidden, intermediate, layers, heads, vocabulary)
    return dict(zip(names, values, strict=True)) | {"num_key_value_heads": 2}


#: The model is Qwen2.5-0.5B's.
FULL = Sizes(architecture(896, 4864, 24, 14, 151_936), 8, 8, 1024, 128, 2, (160, 48), 8192)
TINY = Sizes(architecture(64, 128, 2, 4, 1024), 2, 4, 64, 16, 1, (12, 4), 1024)
#: The model whose gradients are checked, with heads of the same size, and what it takes at once.
SMALL, SMALL_TOKENS = architecture(256, 512, 2, 4, 1024), 4096


@dataclass
class Run:
    """Where the benchmark runs, until when, and what it has found."""

    device: torch.device
    until: float
    reserve: float
    out: Path
    found: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def part(self, name: str, make: Callable[..., Any], *arguments: Any) -> None:
        """Make a part, if there is time for it, and write all that is there; one that fails does not end the others."""
        if time.monotonic() > self.until - self.reserve:
            self.skipped.append(name)
        else:
            print(f"{name} ...", flush=True)
            try:
                self.found[name] = make(self, *arguments)
            except Exception as error:
                traceback.print_exc()
                self.failed[name] = f"{type(error).__name__}: {error}"
        self.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.found | {"skipped": self.skipped, "failed": self.failed}, indent=1)
        self.out.write_text(text + "\n", encoding="utf-8")

    def clock(self) -> float:
        """Seconds, once the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def build(model: dict[str, Any]) -> Any:
    """A random Qwen2 on the CPU, float32."""
    torch.manual_seed(0)
    fixed: dict[str, Any] = {"tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None}
    return Qwen2ForCausalLM(Qwen2Config(**model, **fixed, attn_implementation="sdpa")).eval()


def as_rollouts(rows: list[dict[str, Any]], vocabulary: int) -> pd.DataFrame:
    """Made-up turns, each token with the log-prob that it has where all are equally likely."""
    even = -math.log(vocabulary)
    return pd.DataFrame(row | {"response_logprobs": np.full(len(row["response_ids"]), even)} for row in rows)


def advantages_of(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Advantages of 1 and -1 in turn."""
    values = np.resize([1.0, -1.0], len(rollouts))
    return pd.DataFrame({"turn_id": rollouts["turn_id"], "loss_weight": 1.0, "advantage": values})


def sample(run: Run, policy: Path, sizes: Sizes, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Sample all groups as one batch, add their turns to `rows`; returns how fast it was."""
    rng = np.random.default_rng(0)
    sampler = HFSampler(
        slots=sizes.groups * sizes.members,
        max_context=sizes.prompt + sizes.response,
        dtype="bfloat16",
        device=run.device.type,
    )
    sampler.load(policy, 0)  # its canary warms up
    prompts = [rng.integers(300, sizes.model["vocab_size"], sizes.prompt) for _ in range(sizes.groups)]
    requests = [
        SamplingRequest(f"{number}-{member}", ids.tolist(), sizes.response, 100 * number + member, 1.0, str(number))
        for number, ids in enumerate(prompts)
        for member in range(sizes.members)
    ]
    began = run.clock()
    done = sampler.generate(requests)
    seconds = run.clock() - began
    sampler.close()
    rows += [
        {
            "turn_id": one.session,
            "parent_id": None,
            "extends_parent": False,
            "prompt_ids": np.array(one.prompt_ids),
            "response_ids": np.array(answer.token_ids),
            "response_logprobs": np.array(answer.logprobs),
        }
        for one, answer in zip(requests, done, strict=True)
    ]
    tokens = sum(len(answer.token_ids) for answer in done)
    return {"tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds}


def gradient(model: Any, rollouts: pd.DataFrame, layout: str, dtype: Any, micro_batch_tokens: int) -> Tensor:
    """The gradient of one optimizer step, float32, where the model is; the model keeps none."""
    signals = training_signals(rollouts, None, advantages_of(rollouts), "sampler", reference=False)
    batches = LAYOUTS[layout](training_sequences(rollouts), micro_batch_tokens)
    model.zero_grad(set_to_none=True)
    accumulate_gradients({"policy": model}, {"policy": batches}, signals, LOSS, dtype)
    flat = torch.cat([part.grad.flatten() for part in model.parameters()])
    model.zero_grad(set_to_none=True)
    return flat


def difference(found: Tensor, exact: Tensor) -> float:
    """Norm of the difference, relative to the exact one's."""
    return float((found - exact).norm() / exact.norm())


def check(run: Run) -> dict[str, float]:
    """Differences in float32 of every layout on the device from prefix trees under dense masks on the CPU."""
    on_cpu = build(SMALL)
    model = copy.deepcopy(on_cpu).to(run.device)
    worst: dict[str, float] = dict.fromkeys(COMPARED, 0.0)
    for rows in (group(), bpo(trees=1)):
        rollouts = as_rollouts(rows.rows, SMALL["vocab_size"])
        exact = gradient(on_cpu, rollouts, "tree", "float32", SMALL_TOKENS)
        for layout in COMPARED:
            found = gradient(model, rollouts, layout, "float32", SMALL_TOKENS).cpu()
            worst[layout] = max(worst[layout], difference(found, exact))
    return worst


def rounding(run: Run, model: Any, rollouts: pd.DataFrame, micro_batch_tokens: int) -> dict[str, float]:
    """Differences in bfloat16 of packed rows and prefix trees from single rows."""
    exact = gradient(model, rollouts, "rows", "bfloat16", micro_batch_tokens)
    others = [layout for layout in COMPARED if layout != "rows"]
    return {one: difference(gradient(model, rollouts, one, "bfloat16", micro_batch_tokens), exact) for one in others}


def operations(config: Any, batches: Iterable[PackedBatch]) -> float:
    """Floating-point operations of a forward and backward pass over what the batches hold."""
    width = config.hidden_size
    shared = 2 * config.num_key_value_heads * (width // config.num_attention_heads)
    block = width * (2 * width + shared + 3 * config.intermediate_size)
    total = 0.0
    for batch in batches:
        seen = int(batch.position_ids.sum()) + batch.tokens
        total += 6.0 * config.num_hidden_layers * block * batch.tokens
        total += 12.0 * config.num_hidden_layers * width * seen
        total += 6.0 * width * config.vocab_size * len(batch.targets)
    return total


def peak_operations(name: str) -> float | None:
    """Peak of a device by its name, operations per second; None where it is not known."""
    known = (peak for key, peak in PEAKS.items() if re.search(rf"\b{key}\b", name))
    return next((1e12 * peak for peak in known), None)


def updates(
    run: Run, model: Any, rollouts: pd.DataFrame, layout: Literal["rows", "packed", "tree"], tokens: int, repeats: int
) -> dict[str, Any]:
    """Timed updates under a layout, after one that warms up."""
    training = TrainingConfig(
        iterations=1, learning_rate=1e-6, dtype="bfloat16", packing=layout, micro_batch_tokens=tokens
    )
    advantages = advantages_of(rollouts)
    states: dict[str, TrainerState] = {}
    seconds: list[float] = []
    for turn in range(repeats + 1):
        if turn == 1 and run.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        if turn > 1 and time.monotonic() + seconds[-1] > run.until:
            break
        began = run.clock()
        result = update_policy(
            {"policy": model}, states, rollouts, None, advantages, training, LOSS, "sampler", 0, turn
        )
        seconds.append(run.clock() - began)
        states = result.states
    batches = LAYOUTS[layout](training_sequences(rollouts), tokens)
    found = figures(run, model.config, batches, seconds[1:])
    return found | {"warm_up_seconds": seconds[0], "metrics": result.steps[0]}


def figures(run: Run, config: Any, batches: list[PackedBatch], seconds: list[float]) -> dict[str, Any]:
    """What the seconds of updates on these batches mean."""
    median = statistics.median(seconds)
    flat, trained = sum(batch.flat_tokens for batch in batches), sum(len(batch.targets) for batch in batches)
    on_gpu = run.device.type == "cuda"
    peak = peak_operations(torch.cuda.get_device_name()) if on_gpu else None
    return {
        "seconds": seconds,
        "flat_tokens": flat,
        "computed_tokens": sum(batch.tokens for batch in batches),
        "trained_tokens": trained,
        "masked_batches": sum(batch.masked for batch in batches),
        "flat_tokens_per_second": flat / median,
        "trained_tokens_per_second": trained / median,
        "mfu": operations(config, batches) / median / peak if peak else None,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
    }


def print_table(found: dict[str, Any]) -> None:
    """The updates, one line per layout."""
    table = Table("updates", "layout", "flat tokens/s", "to packed", "MFU", "peak GiB", "median s", "warm-up s")
    for case in ("groups", "trees", "chains"):
        parts = {layout: found[f"{case}_{layout}"] for layout in COMPARED if f"{case}_{layout}" in found}
        base = parts.get("packed", {}).get("flat_tokens_per_second")
        for layout, part in parts.items():
            rate = part["flat_tokens_per_second"]
            table.add_row(
                case,
                layout,
                f"{rate:,.0f}",
                f"{rate / base:.2f}" if base else "",
                f"{part['mfu']:.1%}" if part["mfu"] else "",
                f"{part['peak_memory_gib']:.1f}" if part["peak_memory_gib"] else "",
                f"{statistics.median(part['seconds']):.3f}",
                f"{part['warm_up_seconds']:.1f}",
            )
    Console(width=110).print(table)


def beyond(found: dict[str, Any]) -> list[str]:
    """Checks that failed."""
    checks = (("check", "float32"), ("groups_gradient", "bfloat16"))
    return [
        f"{name}: the gradient of {layout} differs by {value:.1e} in {dtype}, more than {TOLERANCES[dtype]}"
        for name, dtype in checks
        for layout, value in found.get(name, {}).items()
        if not value <= TOLERANCES[dtype]
    ]


def description(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    return {
        "device": name,
        "peak_operations_per_second": peak_operations(name),
        "masks": "block-sparse (FlexAttention)" if block_sparse(device) else "dense: FlexAttention trains on GPUs only",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short episodes, to try this program")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-batch-tokens", type=int, help="tokens that go through the model at once")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/gpu.json"))
    return parser.parse_args()


def main() -> None:
    """Make all parts, print a table; the exit code says whether all could be made and the gradients agree."""
    given = arguments()
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch finds no usable GPU here; `--device cpu --tiny` tries this program on a CPU")
    if given.device == "cuda":
        from torch.compiler import config

        # Otherwise masks of too many shapes would go on without compilation, slow and in dense memory.
        config.fail_on_recompile_limit_hit = True
    sizes = TINY if given.tiny else FULL
    tokens = given.micro_batch_tokens or sizes.micro_batch_tokens
    seconds = 60 * given.minutes
    run = Run(torch.device(given.device), time.monotonic() + seconds, RESERVE * seconds, given.out)
    run.found = {"settings": {"repeats": given.repeats, "micro_batch_tokens": tokens} | asdict(sizes)}
    run.found |= description(run.device)
    with tempfile.TemporaryDirectory() as scratch:
        measure(run, sizes, Path(scratch), tokens, given.repeats)
    print_table(run.found)
    faults = [*beyond(run.found), *(f"{name} failed: {reason}" for name, reason in run.failed.items())]
    print(f"Written to {given.out}.", *(f"left out: {name}" for name in run.skipped), *faults, sep="\n")
    sys.exit(bool(faults))


def measure(run: Run, sizes: Sizes, scratch: Path, tokens: int, repeats: int) -> None:
    """All parts in their order."""
    run.part("check", check)
    policy = build(sizes.model)
    run.found["parameters"] = sum(value.numel() for value in policy.parameters())
    save_policy(policy, train_tokenizer(["none"], 300), scratch)
    del policy
    groups: list[dict[str, Any]] = []
    run.part("sampling", sample, scratch, sizes, groups)
    model = load_policy(scratch, "float32", run.device.type)
    vocabulary = sizes.model["vocab_size"]
    cases = {
        "groups": pd.DataFrame(groups),
        "trees": as_rollouts(bpo(sizes.trees, *sizes.turn).rows, vocabulary),
        "chains": as_rollouts(chains(*sizes.turn).rows, vocabulary),
    }
    for case, rollouts in cases.items():
        for layout in COMPARED if len(rollouts) else ():
            run.part(f"{case}_{layout}", updates, model, rollouts, layout, tokens, repeats)
        if case == "groups" and len(rollouts):
            run.part("groups_gradient", rounding, model, rollouts, tokens)


if __name__ == "__main__":
    main()
