"""What a results directory says about itself: the resolved experiment, and the tracking run of the invocation."""

from __future__ import annotations

import json

from agentbench_rl.config import Experiment
from agentbench_rl.stages.files import write_atomic
from agentbench_rl.stages.layout import Layout
from agentbench_rl.types import AgentRLError


def record_experiment(experiment: Experiment, layout: Layout) -> None:
    """Write `experiment.json` when it changed; raises AgentRLError when the directory holds another experiment."""
    path = layout.root / "experiment.json"
    text = json.dumps(experiment.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
    if path.exists():
        present = path.read_text(encoding="utf-8")
        if present == text:
            return
        name = _name(present)
        if name != experiment.name:
            raise AgentRLError(
                f"{layout.root} holds the results of experiment {name!r}, not of {experiment.name!r}; "
                "choose another --results directory or move it away"
            )
    elif layout.root.exists() and any(layout.root.iterdir()):
        raise AgentRLError(
            f"{layout.root} is not empty and holds no experiment.json; choose another --results directory"
        )
    write_atomic(path, text)


def _name(text: str) -> str:
    try:
        return str(json.loads(text)["name"])
    except (ValueError, KeyError, TypeError):
        return "(unreadable experiment.json)"


def write_parent_run(layout: Layout, run_id: str) -> None:
    """Remember the tracking run that the jobs of this invocation are children of."""
    write_atomic(layout.root / ".parent_run", run_id + "\n")


def parent_run(layout: Layout) -> str | None:
    """The tracking run of the running invocation, if there is one."""
    path = layout.root / ".parent_run"
    return path.read_text(encoding="utf-8").strip() if path.exists() else None
