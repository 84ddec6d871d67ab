"""Rollouts of groups of episodes whose tasks and policy a schedule chooses, where an iteration has more than one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from agentbench_rl.config import Json
from agentbench_rl.rollout.episode import specs_of_groups
from agentbench_rl.stages.iteration import Iteration
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.panel import panel_inputs
from agentbench_rl.stages.sampling import PolicyRef, play, write_rollouts
from agentbench_rl.types import AgentRLError, Progress, Task


def sample_groups(
    run: Iteration, out: Path, policy: PolicyRef, tasks: Sequence[Task], prefix: str, progress: Progress
) -> Json:
    """Play a group of episodes of every task, into `out`; `prefix` stands before their ids."""
    specs = specs_of_groups(tasks, run.method.topology.group_size, prefix)

    def body(scratch: Path) -> StageReport:
        games = run.layout.panels / "games"
        return write_rollouts(play(run.experiment, policy, games, specs, 1.0, progress), scratch)

    return run_stage(
        "rollout",
        out,
        config=run.config("rollout"),
        inputs={"policy": policy.path} | panel_inputs(run.layout.panels, "train"),
        seeds=run.seeds | {"version": policy.version},
        body=body,
        code="groups",
    )


def tasks_of_round(panel: Sequence[Task], count: int, seed: int, iteration: int, number: int) -> list[Task]:
    """Return the tasks of one round below an iteration: the first ones of a permutation of the panel of its own.

    Raises AgentRLError when the panel is smaller than `count`.
    """
    if count > len(panel):
        raise AgentRLError(
            f"a round is to be played on {count} tasks, the train panel has {len(panel)}: raise panels.train.size, or "
            "lower rollout.tasks_per_iteration or schedule.buffer_tasks"
        )
    return random.Random(f"rounds/{seed}/{iteration}/{number}").sample(list(panel), count)
