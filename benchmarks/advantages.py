"""Seconds and peak memory of scoring rollouts, from files to a file on one core, beside the same scoring by verl.

Run: PYTHONPATH=. python benchmarks/advantages.py [--turns 1000000] [--peer-turns 100000] [--repeats 3]

The rollouts are made up: chains of 10 turns of 128 tokens, 8 per group, with random returns and values, and anchors
that repeat. Every method runs in a process of its own, once per repeat; the medians are printed. verl's functions are
public, without files, and take padded tensors, which are made before the clock starts; they are timed on fewer turns,
and the largest difference of the numbers is printed. They need a part of verl's requirements:
    pip install --no-deps verl==0.9.1 ray tensordict==0.10.0 omegaconf codetiming pyvers orjson msgpack
TRL (1.16) has no public function to compare with: its trainers score inside a private method.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TOKENS, CHAIN, GROUP, PART = 128, 10, 8, 10_000
# Episodes are equally long, so that statistics over rows, as verl's are, are as good as over episodes.
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": {"estimator": "group_zscore", "statistics": "per_row"}},
    "rloo": {"advantage": {"estimator": "leave_one_out", "statistics": "per_row"}},
    "gigpo": {"advantage": {"estimator": "gigpo"}},
    "ppo": {"advantage": {"estimator": "gae", "gamma": 0.99, "lam": 0.95}, "critic": {}},
}


def make_rollouts(directory: Path, turns: int) -> None:
    """Write rollouts, episodes and critic values of `turns` turns."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(0)
    writers: dict[str, pq.ParquetWriter] = {}
    for first in range(0, turns // CHAIN, PART):
        episode = np.arange(first, min(first + PART, turns // CHAIN))
        for name, table in _tables(episode, generator).items():
            if name not in writers:
                writers[name] = pq.ParquetWriter(directory / f"{name}.parquet", table.schema, compression="zstd")
            writers[name].write_table(table)
    for writer in writers.values():
        writer.close()


def _tables(episode: np.ndarray, generator: np.random.Generator) -> dict[str, pa.Table]:
    turns = len(episode) * CHAIN
    owner, step = np.repeat(episode, CHAIN), np.tile(np.arange(CHAIN), len(episode))
    tree, group = _ids("train/0/", owner // GROUP, ".g", owner % GROUP), _ids("train/0/", owner // GROUP)
    turn = _joined(tree, _ids(".b0.", step))
    offsets = pa.array(np.arange(turns + 1, dtype=np.int32) * TOKENS)
    tokens = pa.array(generator.integers(0, 150_000, turns * TOKENS, dtype=np.int32))
    values = pa.array(generator.random(turns * TOKENS, dtype=np.float32))
    won = generator.random(len(episode)) < 0.4
    rewards = np.zeros((len(episode), CHAIN), dtype=np.float32)
    rewards[:, -1] = won * generator.random(len(episode))
    leaf = np.arange(CHAIN - 1, turns, CHAIN)
    rollouts = {
        "turn_id": turn,
        "parent_id": pc.if_else(pa.array(step > 0), _joined(tree, _ids(".b0.", step - 1)), None),
        "task_id": _ids("task-", owner // GROUP),
        "group_id": group,
        "tree_id": tree,
        "branch": np.zeros(turns, dtype=np.int32),
        "step": step.astype(np.int32),
        "event_id": turn,
        "member": np.zeros(turns, dtype=np.int16),
        "response_ids": pa.ListArray.from_arrays(offsets, tokens),
        "response_logprobs": pa.ListArray.from_arrays(offsets, values),
        "anchor_key": _ids("0123456789abcdef0123456789abcd", generator.integers(0, 30, turns)),
        "valid": generator.random(turns) < 0.95,
        "reward": rewards.ravel(),
    }
    episodes = {
        "episode_id": tree.take(pa.array(leaf)),
        "leaf_turn_id": turn.take(pa.array(leaf)),
        "ending": pc.if_else(pa.array(won), "success", "failure"),
        "return": rewards[:, -1],
    }
    scores = {"turn_id": turn, "values": pa.ListArray.from_arrays(offsets, values)}
    return {"rollouts": pa.table(rollouts), "episodes": pa.table(episodes), "scores": pa.table(scores)}


def _ids(*parts: Any) -> pa.Array:
    return _joined(*(part if isinstance(part, str) else pa.array(part).cast(pa.string()) for part in parts))


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def score(directory: Path, method: str) -> dict[str, float]:
    """Time one method from files to a file."""
    from agentbench_rl.config.algorithm import AlgorithmConfig
    from agentbench_rl.stages.advantage import write_advantages

    algorithm = AlgorithmConfig.model_validate({"source": "benchmark", **METHODS[method]})
    return _timed(lambda: write_advantages(directory, algorithm, directory / f"{method}.parquet"))


def peer_score(directory: Path, method: str) -> dict[str, float]:
    """Time verl's function for the same rollouts, in memory, and compare its advantages with ours."""
    import torch
    from verl.trainer.ppo import core_algos

    torch.set_num_threads(1)
    score(directory, method)
    turns = pq.read_table(directory / "rollouts.parquet", columns=["group_id", "reward"]).to_pandas()
    groups = turns["group_id"].to_numpy(dtype=object)
    width = TOKENS * CHAIN if method == "ppo" else TOKENS
    rewards = np.zeros((len(turns) * TOKENS // width, width), dtype=np.float32)
    if method == "ppo":
        rewards[:, TOKENS - 1 :: TOKENS] = turns["reward"].to_numpy().reshape(-1, CHAIN)
    else:
        rewards[:, -1] = np.repeat(turns["reward"].to_numpy().reshape(-1, CHAIN).sum(1), CHAIN)
    paid, mask, found = torch.from_numpy(rewards), torch.ones(rewards.shape), []
    if method == "ppo":
        flat = pq.read_table(directory / "scores.parquet", columns=["values"]).column(0).combine_chunks().flatten()
        values = torch.from_numpy(flat.to_numpy().reshape(rewards.shape).copy())
        call = lambda: core_algos.compute_gae_advantage_return(paid, values, mask, 0.99, 0.95)  # noqa: E731
    elif method == "grpo":
        call = lambda: core_algos.compute_grpo_outcome_advantage(paid, mask, groups)  # noqa: E731
    else:
        call = lambda: core_algos.compute_rloo_outcome_advantage(paid, mask, groups)  # noqa: E731
    timed = _timed(lambda: found.append(call()[0].numpy()))
    column = "token_advantages" if method == "ppo" else "advantage"
    ours = pq.read_table(directory / f"{method}.parquet", columns=[column]).column(0).combine_chunks()
    ours = ours.flatten() if method == "ppo" else ours
    theirs = found[0].ravel() if method == "ppo" else found[0][:, 0]
    return timed | {"difference": float(np.abs(ours.to_numpy() - theirs).max())}


def _timed(work: Callable[[], object]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu_seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def measure(directory: Path, turns: int, method: str, repeats: int, *, peer: bool) -> None:
    """Run one method in a process per repeat, on one core, and print the medians."""
    command = [sys.executable, __file__, "--worker", "peer" if peer else "own", str(directory), method]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    runs = []
    for _ in range(repeats):
        result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        runs.append(json.loads(result.stdout.splitlines()[-1]))
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    spread = f"{min(run['seconds'] for run in runs):.2f} to {max(run['seconds'] for run in runs):.2f}"
    line = (
        f"{'verl' if peer else 'ours':>5} {method:6} {turns:>9,} turns {medians['seconds']:7.2f} s ({spread}), "
        f"{medians['cpu']:6.2f} s of processor time, {turns / medians['seconds']:>10,.0f} turns/s, "
        f"peak {medians['peak']:.2f} GiB"
    )
    print(line + (f", largest difference {medians['difference']:.1e}" if peer else ""), flush=True)


def main() -> None:
    """Make the rollouts and print one line per method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--peer-turns", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        pa.set_cpu_count(1)
        kind, directory, method = options.worker
        print(json.dumps((peer_score if kind == "peer" else score)(Path(directory), method)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name, turns in (("own", options.turns), ("peer", options.peer_turns)):
            make_rollouts(Path(scratch) / name, turns - turns % (CHAIN * GROUP))
        for method in METHODS:
            measure(Path(scratch) / "own", options.turns, method, options.repeats, peer=False)
        print("  TRL not timed: its trainers (1.16) score inside a private method")
        if importlib.util.find_spec("verl") is None:
            print(" verl not timed: it is not installed (how to: the first lines of this script)")
            return
        for method in ("grpo", "rloo", "ppo"):
            measure(Path(scratch) / "peer", options.peer_turns, method, options.repeats, peer=True)


if __name__ == "__main__":
    main()
