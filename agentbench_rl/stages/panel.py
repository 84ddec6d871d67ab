"""Stage `panel`: the fixed, hashed, disjoint lists of tasks of an experiment, and the games they name."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.envs import check_data, open_source
from agentbench_rl.stages.files import write_atomic
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.types import AgentRLError, Task

PANELS = ("train", "validation", "test")


def panel(experiment: Experiment, out: Path) -> Json:
    """Draw the three panels and write `<name>.json` each and `games/`; raises AgentRLError when they overlap."""
    check_data(experiment.environment)
    data = experiment.environment.data

    def body(scratch: Path) -> StageReport:
        suite = open_source(experiment.environment, _wanted(experiment))
        panels = draw_panels(experiment, {split: suite.tasks(split) for split in suite.splits()})
        check_disjoint(panels)
        for name, tasks in panels.items():
            content = {"schema": 1, "name": name, "environment": suite.version, "hash": panel_hash(tasks)}
            content["tasks"] = [asdict(task) for task in tasks]
            write_atomic(scratch / f"{name}.json", json.dumps(content, indent=1) + "\n")
        suite.export([task for tasks in panels.values() for task in tasks], scratch / "games")
        return StageReport(counts={name: len(tasks) for name, tasks in panels.items()})

    return run_stage(
        "panel", out, config=stage_config(experiment, "panel"), inputs={"data": data} if data else {}, body=body
    )


def draw_panels(experiment: Experiment, tasks: dict[str, list[Task]]) -> dict[str, list[Task]]:
    """Draw each panel without replacement from its split, seeded; panels are sorted by task_id."""
    panels = {}
    left = {split: sorted(pool, key=lambda task: task.task_id) for split, pool in tasks.items()}
    for name in PANELS:
        settings = getattr(experiment.panels, name)
        pool = left[settings.split]
        size = len(pool) if settings.size == "all" else settings.size
        if size > len(pool) or not pool:
            raise AgentRLError(
                f"panels.{name}.size: {size} tasks asked, split {settings.split!r} has {len(pool)} left; ask for fewer "
                f"here or of other panels of this split, or name another one in panels.{name}.split"
            )
        chosen = random.Random(f"{experiment.panels.seed}/{name}").sample(pool, size)
        panels[name] = sorted(chosen, key=lambda task: task.task_id)
        left[settings.split] = sorted(set(pool) - set(chosen), key=lambda task: task.task_id)
    return panels


def check_disjoint(panels: dict[str, list[Task]]) -> None:
    """Raise AgentRLError when a task, by id or by content, stands in two places."""
    for key in ("task_id", "content_hash"):
        seen = Counter(getattr(task, key) for tasks in panels.values() for task in tasks)
        repeated = [value for value, count in seen.items() if count > 1]
        if repeated:
            raise AgentRLError(f"panels overlap: {len(repeated)} tasks share a {key}, such as {repeated[0]}")


def panel_hash(tasks: list[Task]) -> str:
    """SHA-256 of the ordered ids and contents of a panel."""
    return hashlib.sha256("\n".join(f"{task.task_id} {task.content_hash}" for task in tasks).encode()).hexdigest()


def load_panel(panels: Path, name: str) -> list[Task]:
    """Read a panel; raises AgentRLError when the file is missing, corrupt or does not match its hash."""
    path = panels / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        tasks = [Task(**task) for task in content["tasks"]]
    except FileNotFoundError:
        raise AgentRLError(f"{path}: no such panel; run `agentrl panel` first") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AgentRLError(f"{path}: not a readable panel ({error}); delete it and run `agentrl panel` again") from None
    if panel_hash(tasks) != content.get("hash"):
        raise AgentRLError(f"{path}: its tasks do not match its hash; it was edited. Run `agentrl panel` again")
    return tasks


def panel_inputs(panels: Path, name: str) -> dict[str, Path]:
    """The files that define a panel's tasks: the panel, and the games of its splits."""
    splits = {task.split for task in load_panel(panels, name)}
    games = [
        path
        for path in sorted((panels / "games").iterdir())
        if not path.name.startswith("games_") or path.name.removeprefix("games_").partition(".")[0] in splits
    ]
    return {"panel": panels / f"{name}.json"} | {f"games/{path.name}": path for path in games}


def _wanted(experiment: Experiment) -> dict[str, int | None]:
    wanted: dict[str, int | None] = {}
    for name in PANELS:
        settings = getattr(experiment.panels, name)
        before = wanted.get(settings.split, 0)
        wanted[settings.split] = None if settings.size == "all" or before is None else before + settings.size
    return wanted
