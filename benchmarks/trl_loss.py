"""An update's gradient here and through TRL's GRPOTrainer: the same episodes, model, threads and dtype.

Run: make bench-trl, which installs TRL into an environment of its own; where TRL is installed:
PYTHONPATH=. python benchmarks/trl_loss.py [--repeats 5] [--threads 1] [--out results/benchmarks]

Model and episodes are those of `update_layouts`. Loss: the clipped objective (0.2), averaged over all trained tokens of
the batch (`dapo` in TRL, `token_mean` here), without a reference model, old log-probs known; both compute entropies for
their metrics. Timed is what comes after the token ids: here layout, loss, backward; there `compute_loss` and backward
of tensors that were padded before, some samples at a time: as many as were fastest in the first round. TRL runs without
gradient checkpointing, which it has on by default. Without Triton, so on a CPU, it scores prompts as well.

A sample of TRL is a prompt and a completion with a mask. `rows`: a sample per sequence, from its first response on
completion. `turns`: a sample per response, its history the prompt: what becomes of an episode whose prompts are
rendered anew every turn. Tokens per second count the tokens of the sequences, however often they are computed. Times
are processor seconds; the ways take turns, and the first round warms up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM
from update_layouts import BUDGET, SIZES, VOCABULARY, Rows, bpo, chains, group

from agentbench_rl.config.loss import TokenClip
from agentbench_rl.policies.tokenisation import train_tokenizer
from agentbench_rl.training.gradients import accumulate_gradients
from agentbench_rl.training.prefix_tree import auto_batches
from agentbench_rl.training.scoring import policy_measure, score_tokens
from agentbench_rl.training.sequences import Response, Sequence, training_sequences
from agentbench_rl.training.signals import Signal

LOSS = TokenClip(kl_coefficient=0.0, aggregation="token_mean", dual_clip=None)
#: Episodes, and the samples that TRL makes of them.
CASES: dict[str, tuple[Callable[[], Rows], tuple[str, ...]]] = {
    "group of 8": (group, ("rows",)),
    "chains": (chains, ("rows", "turns")),
    "BPO trees": (bpo, ("rows",)),
}
#: Samples that TRL takes at a time.
MICRO_BATCHES = (1, 4, 16)
Step = Callable[[], None]


@dataclass(frozen=True)
class Sample:
    """What TRL trains on: prompt [P], completion, which of its tokens are trained, advantages, old log-probs [C]."""

    prompt: Any
    completion: Any
    trained: Any
    advantages: Any
    old: Any


def sample(sequence: Sequence, responses: Items[Response], signals: Mapping[str, Signal]) -> Sample:
    """The sequence from before the first of these responses to the end of the last."""
    first, last = responses[0].start, responses[-1].stop
    trained = np.zeros(last - first, np.int64)
    advantages, old = np.zeros(last - first, np.float32), np.zeros(last - first, np.float32)
    for item in responses:
        own = slice(item.start - first, item.stop - first)
        trained[own] = 1
        advantages[own], old[own] = signals[item.turn_id].advantage, signals[item.turn_id].old
    return Sample(sequence.token_ids[:first], sequence.token_ids[first:last], trained, advantages, old)


def padded(parts: Items[Any], side: str) -> torch.Tensor:
    """Arrays of different lengths [n] as one tensor [B, L], filled with zeros on one side."""
    tensors = [torch.from_numpy(part) for part in parts]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_side=side)


def trl_inputs(samples: Items[Sample]) -> dict[str, torch.Tensor]:
    """What `compute_loss` reads."""
    prompts, completions, trained, advantages, old = zip(*map(astuple, samples), strict=True)
    return {
        "prompt_ids": padded(prompts, "left"),
        "prompt_mask": padded([np.ones_like(ids) for ids in prompts], "left"),
        "completion_ids": padded(completions, "right"),
        "completion_mask": padded([np.ones_like(ids) for ids in completions], "right"),
        "tool_mask": padded(trained, "right"),
        "advantages": padded(advantages, "right"),
        "old_per_token_logps": padded(old, "right"),
    }


def trl_trainer(model: Any, directory: str) -> Any:
    """TRL's trainer of the model, which never reads its data set; ends the program where TRL is not installed."""
    try:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        raise SystemExit(
            f"{error}: this benchmark needs TRL. `make bench-trl` installs it into .venv-trl and runs the benchmark "
            "there; or install it here: pip install 'trl==1.16.*'"
        ) from error
    arguments = GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        loss_type="dapo",
        beta=0.0,
        epsilon=LOSS.clip_low,
        num_generations=2,
        per_device_train_batch_size=2,
        report_to="none",
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["none"]}),
        processing_class=train_tokenizer(["none"], 300),
    )


def trl_step(trainer: Any, samples: Items[Sample], count: int) -> Step:
    """TRL's loss and backward pass, `count` samples at a time."""
    inputs = trl_inputs(samples)
    trained = inputs["tool_mask"].sum()
    parts = [
        {name: value[first : first + count] for name, value in inputs.items()} | {"num_items_in_batch": trained}
        for first in range(0, len(samples), count)
    ]

    def step() -> None:
        for part in parts:
            trainer.compute_loss(trainer.model, part).backward()

    return step


def our_step(model: Any, sequences: list[Sequence], signals: Mapping[str, Signal]) -> Step:
    """The gradient as this package's trainer accumulates it."""

    def step() -> None:
        batches = {"policy": auto_batches(sequences, BUDGET)}
        accumulate_gradients({"policy": model}, batches, signals, LOSS, "float32")

    return step


def seconds_of(model: Any, step: Step) -> float:
    """Processor seconds of a step from zero gradients."""
    model.zero_grad()
    began = time.process_time()
    step()
    return time.process_time() - began


def fastest(model: Any, ways: Mapping[int, Step]) -> int:
    """The number of samples at a time that takes TRL the least time."""
    seconds_of(model, next(iter(ways.values())))  # warms up, so that the first way is timed like the others
    seconds = {count: seconds_of(model, step) for count, step in ways.items()}
    return min(seconds, key=lambda count: seconds[count])


def samples_of(kind: str, sequences: list[Sequence], signals: Mapping[str, Signal]) -> list[Sample]:
    """TRL's samples of the sequences."""
    if kind == "rows":
        return [sample(one, one.responses, signals) for one in sequences]
    return [sample(one, [item], signals) for one in sequences for item in one.responses]


def measure(model: Any, trainer: Any, rollouts: pd.DataFrame, kinds: Items[str], repeats: int) -> dict[str, Any]:
    """Seconds and tokens per second of every way, and how far TRL's gradients are from ours (relative norm)."""
    rng = np.random.default_rng(0)
    sequences = training_sequences(rollouts)
    old = score_tokens(model, policy_measure(model), rollouts, BUDGET)["logprobs"]
    signals = {
        turn: Signal(np.full(len(values), rng.choice([-1.0, 1.0])), values.astype(np.float64), None, 1.0)
        for turn, values in old.items()
    }
    steps, counts = {"ours": our_step(model, sequences, signals)}, {}
    for kind in kinds:
        samples = samples_of(kind, sequences, signals)
        ways = {count: trl_step(trainer, samples, count) for count in MICRO_BATCHES}
        counts[f"TRL {kind}"] = fastest(model, ways)
        steps[f"TRL {kind}"] = ways[counts[f"TRL {kind}"]]
    gradients = {}
    for name, step in steps.items():
        seconds_of(model, step)
        gradients[name] = torch.cat([part.grad.flatten() for part in model.parameters()]).clone()
    rounds = [{name: seconds_of(model, step) for name, step in steps.items()} for _ in range(repeats)]
    tokens = sum(len(one.token_ids) for one in sequences)
    exact = gradients["ours"]
    return {
        "tokens": tokens,
        "trained_tokens": sum(map(len, old.values())),
        "samples_at_a_time": counts,
        "tokens_per_second": {name: tokens / statistics.median(one[name] for one in rounds) for name in steps},
        "ours_is_faster": {name: spread([one[name] / one["ours"] for one in rounds]) for name in counts},
        "gradient_difference": {name: float((gradients[name] - exact).norm() / exact.norm()) for name in counts},
        "seconds": rounds,
    }


def spread(ratios: list[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def main() -> None:
    """Measure all cases, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, attn_implementation="sdpa", **SIZES)).eval()
    results = {}
    table = Table("case", "tokens", "ours, tokens/s", "TRL", "tokens/s", "ours ×", "gradient difference")
    with tempfile.TemporaryDirectory() as directory:
        trainer = trl_trainer(model, directory)
        model.eval()
        torch.set_num_threads(options.threads)
        for name, (case, kinds) in CASES.items():
            found = measure(model, trainer, pd.DataFrame(case().rows), kinds, options.repeats)
            results[name] = found
            rates = found["tokens_per_second"]
            for way, count in found["samples_at_a_time"].items():
                ratio = found["ours_is_faster"][way]
                table.add_row(
                    *(name, f"{found['tokens']:,}", f"{rates['ours']:,.0f}", f"{way[4:]}, {count} at a time"),
                    f"{rates[way]:,.0f}",
                    f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})",
                    f"{found['gradient_difference'][way]:.1e}",
                )
    Console(width=120).print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "trl_loss.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
