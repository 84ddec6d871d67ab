"""Stage `report`: one HTML page from the tables, figures, panels and a few episodes of a comparison."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pandas as pd

from agentbench_rl import __version__
from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.evaluation.report import ReportContext, Transcript, write_report
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, require, run_stage
from agentbench_rl.stages.panel import PANELS, load_panel, panel_hash
from agentbench_rl.stages.reading import episode_turns, first_prompt, team_events
from agentbench_rl.types import AGENT, episode_schema, rollout_schema

_FIGURES = {
    "Success of the last policies on the test panel": "success.svg",
    "Validation success against updates": "curves_updates.svg",
    "Validation success against sampled tokens": "curves_tokens.svg",
    "Validation success at equal cost": "curves_matched.svg",
}
_EXPLORATION = {
    "Distinct states visited in training": "exploration_states.svg",
    "Mean state score of expanded states": "exploration_scores.svg",
    "How many responses states were allotted": "exploration_allocations.svg",
}
_TABLES = ("summary", "paired", "cost", "matched", "at_equal_cost", "utility", "exploration")
_PACKAGES = ("mlflow", "numpy", "pandas", "pyarrow", "snakemake", "torch", "transformers")


def report(experiment: Experiment, layout: Layout) -> Json:
    """Write `report.html`; raises AgentRLError when the comparison is not finished."""

    def body(scratch: Path) -> StageReport:
        write_report(scratch, report_context(experiment, layout))
        return StageReport()

    inputs = {f"{name}.csv": layout.tables / f"{name}.csv" for name in _TABLES}
    inputs |= {path.name: path for path in _trees(experiment, layout).values()}
    inputs |= {f"{name}/episodes": directory / "episodes.parquet" for name, directory in _shown(experiment, layout)}
    return run_stage("report", layout.report, config=stage_config(experiment, "report"), inputs=inputs, body=body)


def report_context(experiment: Experiment, layout: Layout) -> ReportContext:
    """Gather what the report shows."""
    require(layout.tables, "compare", stage_config(experiment, "compare"))
    tables = {name: pd.read_csv(layout.tables / f"{name}.csv") for name in _TABLES}
    methods = ", ".join(experiment.algorithms)
    return ReportContext(
        title=experiment.name,
        description=(
            f"{methods} from one start policy on {experiment.environment.name} "
            f"({experiment.panels.test.split}, {len(load_panel(layout.panels, 'test'))} test tasks)."
        ),
        budget=_budget(experiment),
        figures={caption: layout.tables / name for caption, name in _FIGURES.items()},
        exploration_figures={
            caption: path for caption, name in _EXPLORATION.items() if (path := layout.tables / name).exists()
        },
        trees=_trees(experiment, layout),
        config=stage_config(experiment, "report"),
        panels={name: panel_hash(load_panel(layout.panels, name)) for name in PANELS},
        packages={"agentbench-rl": __version__} | {name: version(name) for name in _PACKAGES},
        transcripts=transcripts(layout, experiment),
        level=experiment.evaluation.level,
        **tables,
    )


def _budget(experiment: Experiment) -> str:
    training = experiment.training
    kinds = {name: method.schedule.kind for name, method in experiment.algorithms.items()}
    rounds, swaps, lagging = (
        [name for name in kinds if kinds[name] == kind] for kind in ("post_step", "reward_swap", "one_step_off")
    )
    steps = f"{training.epochs * training.minibatches} optimizer steps each"
    return (
        f"{training.iterations} iterations of {experiment.rollout.tasks_per_iteration} tasks per method and seed, "
        + steps
        + (f" ({', '.join(rounds)}: updates between the rounds of an iteration)" if rounds else "")
        + (f" ({', '.join(lagging)}: sampled with the policy before the last update)" if lagging else "")
        + (f" ({', '.join(swaps)}: besides, an explorer's episodes and steps, which the costs count)" if swaps else "")
        + "."
    )


def _trees(experiment: Experiment, layout: Layout) -> dict[str, Path]:
    """The drawn trees by method; one whose last iteration has no tree of several leaves has none."""
    pictures = {name: layout.tables / f"tree_{name}.svg" for name in experiment.algorithms}
    return {name: path for name, path in pictures.items() if path.exists()}


def _shown(experiment: Experiment, layout: Layout) -> tuple[tuple[str, Path], ...]:
    method, seed = next(iter(experiment.algorithms)), experiment.seeds[0]
    return ("sft", layout.start_evaluation("test")), (method, layout.test(method, seed))


def transcripts(layout: Layout, experiment: Experiment) -> list[Transcript]:
    """One won and one lost test episode of the start policy and of the first method's last policy."""
    chosen = []
    for name, directory in _shown(experiment, layout):
        episodes = read_frame(directory / "episodes.parquet", episode_schema())
        turns = read_frame(directory / "rollouts.parquet", rollout_schema())
        for won in (True, False):
            matching = episodes.loc[episodes["success"] == won]
            if len(matching):
                chosen.append(transcript(name, matching.iloc[0], turns, layout.sft / "policy"))
    return chosen


def transcript(policy: str, episode: pd.Series, turns: pd.DataFrame, tokenizer: Path) -> Transcript:
    """An episode as pairs of (observation, action), or of a team as pairs of (event, what its members said)."""
    rows = episode_turns(turns, episode)
    title = f"{policy}: {episode['task_id']} ({episode['ending']}, {episode['length']} turns)"
    first = first_prompt(rows, tokenizer)
    if AGENT in rows:
        said = [(event.heading, "\n".join(event.lines)) for event in team_events(rows, tokenizer)]
        return Transcript(title, [("prompt of the first member", first), *said], labels=("event", "members"))
    seen = [first, *rows["observation"]][: len(rows)]
    return Transcript(title, list(zip(seen, rows["action"], strict=True)))
