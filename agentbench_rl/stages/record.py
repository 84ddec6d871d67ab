"""What a results directory says about itself: the resolved experiment, and the tracking run of the invocation."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from agentbench_rl.config import Experiment
from agentbench_rl.stages.files import write_atomic
from agentbench_rl.stages.layout import Layout
from agentbench_rl.types import AgentRLError

#: Lives and dies with Snakemake's records, which stand beside it.
_ID = Path(".snakemake/agentrl_id")
_WORKPLACE = ".workplace"
#: What the rules of the workflow have as outputs.
_DONE = (
    "*/outputs.json",
    "evaluation/*/*/outputs.json",
    "runs/*/*/segments/*.json",
    "runs/*/*/iteration*/*/outputs.json",
)


def record_experiment(experiment: Experiment, layout: Layout) -> None:
    """Write `experiment.json` when it changed; raises AgentRLError when the directory holds another experiment."""
    path = layout.root / "experiment.json"
    text = json.dumps(experiment.model_dump(mode="json"), indent=2) + "\n"
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


def record_workplace(layout: Layout) -> None:
    """Remember that the Snakemake that works in this directory has records of the results."""
    if not _ID.exists():
        write_atomic(_ID, uuid.uuid4().hex + "\n")
    write_atomic(layout.root / _WORKPLACE, _workplace(layout))


def forget_foreign(experiment: Experiment, layout: Layout) -> bool:
    """Have Snakemake look at every stage again where it has no records of the results; tells whether it was so.

    Nothing is touched in a directory that `record_experiment` would refuse.

    Without its records (results copied or moved, made stage by stage, or from another directory) Snakemake knows
    nothing of the settings that files were made under, and takes them for what is asked. So the files that it goes by
    are removed; a stage that is finished under the same settings keeps its outputs and writes them again.
    """
    path, recorded = layout.root / _WORKPLACE, layout.root / "experiment.json"
    if _ID.exists() and path.exists() and path.read_text(encoding="utf-8") == _workplace(layout):
        return False
    if not recorded.exists() or _name(recorded.read_text(encoding="utf-8")) != experiment.name:
        return False
    done = [file for pattern in _DONE for file in layout.root.glob(pattern)]
    for file in done:
        file.unlink()
    return bool(done)


def _workplace(layout: Layout) -> str:
    return f"{_ID.read_text(encoding='utf-8').strip()} {_ID.resolve()} {layout.root.resolve()}\n"


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
