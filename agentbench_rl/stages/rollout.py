"""Stage `rollout`: sample groups of episodes with the current policy → rollouts, episodes, timings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.rollout.episode import specs_of_groups
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.panel import load_panel, panel_inputs
from agentbench_rl.stages.sampling import PolicyRef, play, write_rollouts
from agentbench_rl.types import AgentRLError, Progress, Task, silent


def rollout(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Sample the groups of one iteration; ids are derived from (seed, iteration, task, replica)."""
    policy = PolicyRef(layout.start(algorithm, seed, iteration) / "policy", "policy", iteration)
    tasks = tasks_of_iteration(
        load_panel(layout.panels, "train"), experiment.rollout.tasks_per_iteration, seed, iteration
    )
    group_size = experiment.algorithms[algorithm].topology.group_size
    specs = specs_of_groups(tasks, group_size, f"s{seed}.i{iteration}")

    def body(scratch: Path) -> StageReport:
        played = play(experiment, policy, layout.panels / "games", specs, temperature=1.0, progress=progress)
        return write_rollouts(played, scratch)

    return run_stage(
        "rollout",
        layout.stage(algorithm, seed, iteration, "rollout"),
        config=stage_config(experiment, "rollout", algorithm),
        inputs={"policy": policy.path} | panel_inputs(layout.panels, "train"),
        seeds={"seed": seed, "iteration": iteration},
        body=body,
    )


def tasks_of_iteration(panel: Sequence[Task], count: int, seed: int, iteration: int) -> list[Task]:
    """Return the tasks of an iteration: slices of a fresh permutation of the panel per epoch, never one task twice.

    All methods of a comparison get the same tasks at the same seed and iteration. Raises AgentRLError when the
    panel is smaller than `count`.
    """
    if count > len(panel):
        raise AgentRLError(f"rollout.tasks_per_iteration is {count}, the train panel has {len(panel)} tasks")
    per_epoch = len(panel) // count
    epoch, slot = divmod(iteration, per_epoch)
    order = list(panel)
    random.Random(f"tasks/{seed}/{epoch}").shuffle(order)
    return order[slot * count : (slot + 1) * count]
