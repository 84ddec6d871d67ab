"""Turns per second of the sampler: lock-step episodes of a small random policy, about 25 new prompt tokens a turn."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import torch

from agentbench_rl.config import TinyModel
from agentbench_rl.policies.base import SamplingRequest
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import save_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import train_tokenizer


def measure(rows: int, turns: int, prompt: int, response: int) -> tuple[int, float, int]:
    """Return turns sampled, seconds, and the longest context of `rows` episodes of `turns` turns."""
    draw = random.Random(0)
    texts = [" ".join("".join(draw.choices("abcdefgh", k=4)) for _ in range(20)) for _ in range(400)]
    tokenizer = train_tokenizer(texts, 1024)
    with tempfile.TemporaryDirectory() as directory:
        save_policy(build_policy(TinyModel(), tokenizer, 0), tokenizer, Path(directory))
        sampler = HFSampler(slots=rows, max_context=1024)
        sampler.load(Path(directory), 0)
    histories = [[draw.randrange(5, 1000) for _ in range(draw.randint(80, 160))] for _ in range(rows)]
    started = time.perf_counter()
    for turn in range(turns):
        lengths = [max(1, min(16, round(draw.gauss(response, 1.5)))) for _ in range(rows)]
        requests = [
            SamplingRequest(str(row), ids, lengths[row], seed=1000 * turn + row) for row, ids in enumerate(histories)
        ]
        for ids, done in zip(histories, sampler.generate(requests), strict=True):
            ids += done.token_ids
            ids += [draw.randrange(5, 1000) for _ in range(draw.randint(prompt // 2, prompt * 3 // 2))]
    return rows * turns, time.perf_counter() - started, max(map(len, histories))


def main() -> None:
    """Print the turns per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 64), ("turns", 18), ("prompt", 25), ("response", 6), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count, seconds, longest = measure(options.rows, options.turns, options.prompt, options.response)
    print(f"{count / seconds:.0f} turns/s ({count} turns, {seconds:.1f} s, contexts up to {longest} tokens)")


if __name__ == "__main__":
    main()
