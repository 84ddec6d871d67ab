"""Stage `demos`: expert episodes on training tasks, with failed actions that the loss will not imitate.

Before an expert action, with probability `failure_rate`, the agent first tries an action of the same verb that is not
admissible now (one that was at another moment or in another task). The failed action is marked untrainable; what the
expert does after it is what a policy needs to see, or it repeats a failed action for ever. How often members of a team
are wrong its workflow decides.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.envs import open_suite
from agentbench_rl.envs.base import Suite
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.panel import load_panel, panel_inputs
from agentbench_rl.stages.team_demos import team_episode
from agentbench_rl.types import SCHEMA_VERSION, AgentRLError, Progress, Task, silent

Row = dict[str, Any]
_SCHEMA = pa.schema(
    [
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("observation", pa.string(), nullable=False),
        pa.field("admissible", pa.list_(pa.string()), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("trainable", pa.bool_(), nullable=False),
        pa.field("system", pa.string()),
    ],
    metadata={"agentbench_rl.schema": str(SCHEMA_VERSION)},
)
#: Inadmissible actions are drawn from the last so many distinct ones seen.
_MEMORY = 2000


def demo_schema() -> pa.Schema:
    """Schema of `demos.parquet`: one row per action, after what the agent saw and could do before it.

    Of a team one row per member's output, with its role's instructions as `system`, which is null for single agents.
    """
    return _SCHEMA


def demos(experiment: Experiment, layout: Layout, progress: Progress = silent) -> Json:
    """Write `demos.parquet` with successful expert episodes; raises AgentRLError when the expert rarely succeeds."""

    def body(scratch: Path) -> StageReport:
        tasks = load_panel(layout.panels, "train")
        splits = sorted({task.split for task in tasks})
        suite = open_suite(experiment.environment, layout.panels / "games", splits)
        rows: list[Row] = []
        succeeded = tried = 0
        for episode in demonstrate(suite, tasks, experiment):
            tried += 1
            if episode:
                succeeded += 1
                rows += episode
            progress(succeeded, experiment.demos.episodes)
            if succeeded == experiment.demos.episodes:
                break
            if tried >= 20 and succeeded < tried / 2:
                raise AgentRLError(f"demos: the {experiment.demos.expert} expert won {succeeded} of {tried} episodes")
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
        pq.write_table(table, scratch / "demos.parquet", compression="zstd")
        counts = {"episodes": succeeded, "failed_episodes": tried - succeeded, "actions": len(rows)}
        steps = {} if experiment.team else {"environment_steps": float(len(rows))}
        return StageReport(counts=counts, ledger=steps)

    return run_stage(
        "demos",
        layout.demos,
        config=stage_config(experiment, "demos"),
        inputs=panel_inputs(layout.panels, "train"),
        body=body,
    )


def demonstrate(suite: Suite, tasks: list[Task], experiment: Experiment) -> Iterator[list[Row]]:
    """Yield one episode after another, cycling through a seeded order of the tasks; an empty list is a failure."""
    settings = experiment.demos
    memory: dict[str, None] = {}
    round_ = 0
    while True:
        order = list(tasks)
        random.Random(f"demos/{settings.seed}/{round_}").shuffle(order)
        for task in order:
            yield _play(suite, task, experiment, round_, memory)
        round_ += 1


def _play(suite: Suite, task: Task, experiment: Experiment, round_: int, memory: dict[str, None]) -> list[Row]:
    settings = experiment.demos
    episode_id = f"demo{settings.seed}.{round_}.{task.task_id}"
    if experiment.team is not None:
        return team_episode(suite, task, experiment, episode_id)
    rng = random.Random(episode_id)
    with closing(suite.make()) as environment:
        observation = environment.reset(task).text
        expert = suite.demonstrator(settings.expert, environment, task, rng.getrandbits(32))
        rows: list[Row] = []
        action = None
        while len(rows) < experiment.environment.max_turns:
            proposed = expert(observation, action)
            admissible = environment.admissible() or []
            failing = None
            if rng.random() < settings.failure_rate:
                failing = _failing_action(proposed, {*admissible, action}, memory, rng)
            _remember(admissible, memory)
            action = failing or proposed
            if action is None:
                return []
            rows.append(
                {
                    "episode_id": episode_id,
                    "task_id": task.task_id,
                    "task_type": task.task_type,
                    "step": len(rows),
                    "observation": observation,
                    "admissible": admissible,
                    "action": action,
                    "trainable": failing is None,
                }
            )
            result = environment.step(action)
            observation = result.observation
            if result.done:
                return rows if result.success else []
        return []


def _failing_action(
    proposed: str | None, excluded: set[str | None], memory: dict[str, None], rng: random.Random
) -> str | None:
    """An action of the proposed one's verb, not among the excluded ones: the admissible, and the one just executed."""
    verb = (proposed or "").partition(" ")[0]
    candidates = [action for action in memory if action.partition(" ")[0] == verb and action not in excluded]
    return rng.choice(candidates) if candidates else None


def _remember(admissible: list[str], memory: dict[str, None]) -> None:
    for action in admissible:
        memory.pop(action, None)
        memory[action] = None
    while len(memory) > _MEMORY:
        memory.pop(next(iter(memory)))
