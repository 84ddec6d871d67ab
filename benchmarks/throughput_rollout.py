"""Turns per second of whole rollouts (sampler, environment, bookkeeping) with the start policy of a finished run.

python benchmarks/throughput_rollout.py [results/quickstart] [--episodes 128] [--threads 2] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from agentbench_rl.presets import load_experiment
from agentbench_rl.rollout.episode import specs_of_groups
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.sampling import PolicyRef, play
from agentbench_rl.types import silent


def main() -> None:
    """Print the median and the spread over the repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=Path("results/quickstart"))
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    layout = Layout(arguments.root)
    if not (layout.sft / "policy").is_dir():
        sys.exit(f"{layout.sft / 'policy'} does not exist: run the experiment first (make reproduce)")
    experiment = load_experiment(layout.root / "experiment.json", [f"threads={arguments.threads}"])
    policy = PolicyRef(layout.sft / "policy", "policy", 0)
    tasks = load_panel(layout.panels, "train")[: arguments.episodes]
    rates = []
    for repeat in range(arguments.repeats + 1):
        started = time.perf_counter()
        played = play(experiment, policy, layout.panels / "games", specs_of_groups(tasks, 1, f"b{repeat}"), 1.0, silent)
        rates.append(len(played.turns) / (time.perf_counter() - started))
    # The first pass warms up.
    measured = sorted(rates[1:])
    print(
        f"rollouts: {statistics.median(measured):.0f} turns/s (from {measured[0]:.0f} to {measured[-1]:.0f}, "
        f"{arguments.repeats} repeats of {len(tasks)} episodes, {arguments.threads} threads)"
    )


if __name__ == "__main__":
    main()
