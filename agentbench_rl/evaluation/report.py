"""The report of a comparison: one HTML file that needs nothing beside it, no script and no network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from agentbench_rl.evaluation.exploration import EXPLORATION_COLUMNS
from agentbench_rl.evaluation.tables import START

_SHAPE = ("branch_points", "branch_depth", "branch_entropy", "expansion_depth", "mean_score")
_SIDES = ("method", "baseline")
_CONDUCT = ("score", "episode_length", "invalid_turn_rate", "ending/truncated", "ending/infrastructure")


@dataclass(frozen=True)
class Transcript:
    """One episode to read: pairs of (what the environment said, what the agent answered), or other `labels`."""

    title: str
    turns: Sequence[tuple[str, str]]
    labels: tuple[str, str] = ("environment", "agent")


@dataclass(frozen=True)
class ReportContext:
    """All that a report shows.

    summary, paired, cost, matched: frames of `tables`. at_equal_cost: an `equal_cost_table`. utility: a
    `utility_table`. exploration: an `exploration_table`.
    figures: caption → SVG file. trees: method → SVG file of one of its trees. panels: split → content
    hash. config: the resolved configuration as plain JSON values. packages: name → version.
    """

    title: str
    description: str
    budget: str
    summary: pd.DataFrame
    paired: pd.DataFrame
    cost: pd.DataFrame
    matched: pd.DataFrame
    at_equal_cost: pd.DataFrame
    utility: pd.DataFrame
    exploration: pd.DataFrame
    figures: Mapping[str, Path]
    exploration_figures: Mapping[str, Path]
    trees: Mapping[str, Path]
    config: Mapping[str, object]
    panels: Mapping[str, str]
    packages: Mapping[str, str]
    transcripts: Sequence[Transcript] = ()
    level: float = 0.95


@dataclass(frozen=True)
class _Table:
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)


def write_report(directory: Path, context: ReportContext) -> Path:
    """Write `report.html` into `directory` and return its path; the same context gives the same bytes."""
    from jinja2 import Environment, StrictUndefined

    template = files("agentbench_rl.evaluation").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    html = environment.from_string(template).render(
        context=context,
        level=f"{100 * context.level:g} %",
        statements=_statements(context.summary),
        success=_success(context.summary),
        types=_by_method(context.summary, lambda metric: metric.startswith("success/")),
        conduct=_by_method(context.summary, lambda metric: metric in _CONDUCT),
        paired=_paired(context.paired),
        matched=_matched(context.matched),
        at_equal_cost=_at_equal_cost(context.at_equal_cost),
        cost=_cost(context.cost),
        utility=_utility(context.utility),
        exploration=_exploration(context.exploration),
        figures=_pictures(context.figures),
        exploration_figures=_pictures(context.exploration_figures),
        trees=_pictures({f"A tree of {method}": path for method, path in context.trees.items()}),
        panels=_Table(["split", "content hash"], [list(item) for item in context.panels.items()]),
        packages=_Table(["package", "version"], [list(item) for item in context.packages.items()]),
        config=json.dumps(context.config, indent=2, ensure_ascii=False),
    )
    path = directory / "report.html"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(html.strip() + "\n", encoding="utf-8", newline="\n")
    return path


def _statements(summary: pd.DataFrame) -> list[str]:
    """What the intervals can and cannot tell, and how many episodes they had to leave out."""
    success = summary[summary["metric"] == "success"]
    statements = []
    for seeds in sorted(set(success["seeds"]) - {0}):
        methods = list(success.loc[success["seeds"] == seeds, "method"])
        names = "every method" if len(methods) == (success["seeds"] > 0).sum() else ", ".join(methods)
        if seeds == 1:
            statements.append(
                f"One training seed ({names}): intervals are over test tasks, not over training runs. They "
                "tell how sure the success of these policies is, and not how another run would have ended."
            )
        else:
            statements.append(
                f"{seeds} training seeds ({names}): intervals resample training runs and test tasks together."
            )
    episodes = int(summary.loc[summary["metric"] == "ending/infrastructure", "episodes"].sum())
    faulty = episodes - int(success["episodes"].sum())
    statements.append(
        f"{faulty or 'No'} of {episodes} test episodes ended in an infrastructure fault; such "
        "episodes have no score and enter no success."
    )
    return statements


def _success(summary: pd.DataFrame) -> _Table:
    success = summary[summary["metric"] == "success"]
    difference = summary[summary["metric"] == "success_minus_sft"]
    several = [metric for metric in dict.fromkeys(summary["metric"]) if metric.startswith("pass_at_")]
    passed = {(row["method"], row["metric"]): _share(row) for _, row in summary.iterrows() if row["metric"] in several}
    counts = ["episodes", "seeds", "sampled_tokens", "updates"]
    table = _Table(
        ["method", "success", *map(_words, several), f"difference to {START}", "verdict", *map(_words, counts)]
    )
    for _, row in success.iterrows():
        gaps = [other for _, other in difference.iterrows() if other["method"] == row["method"]]
        gap = [_points(gaps[0]), _verdict(gaps[0])] if gaps else ["", ""]
        any_of = [passed.get((row["method"], metric), "") for metric in several]
        table.rows.append([row["method"], _share(row), *any_of, *gap, *(_number(row[key]) for key in counts)])
    return table


def _by_method(summary: pd.DataFrame, chosen: Callable[[str], bool]) -> _Table:
    """Methods as rows, the chosen metrics as columns."""
    metrics = [metric for metric in dict.fromkeys(summary["metric"]) if chosen(metric)]
    table = _Table(["method", *(_words(metric.split("/")[-1]) for metric in metrics)])
    for method, rows in summary.groupby("method", sort=False) if metrics else ():
        cells = {
            row["metric"]: _plain(row) if row["metric"] == "episode_length" else _share(row)
            for _, row in rows.iterrows()
        }
        table.rows.append([str(method), *(cells.get(metric, "") for metric in metrics)])
    return table


def _paired(paired: pd.DataFrame) -> _Table:
    table = _Table(["pair", "difference", "verdict", "tasks", "tasks without a score", "interval over"])
    for _, row in paired.iterrows():
        name = f"{row['method']} − {row['baseline']}"
        counts = [_number(row["tasks"]), _number(row["tasks_without_score"]), row["interval_over"]]
        table.rows.append([name, _points(row), _verdict(row), *counts])
    return table


def _matched(matched: pd.DataFrame) -> _Table:
    table = _Table(["method", "success", "update", "sampled tokens", "budget"])
    for _, row in matched.iterrows():
        counts = [_number(row[key]) for key in ("update", "sampled_tokens", "budget")]
        table.rows.append([row["method"], _share(row), *counts])
    return table


def _at_equal_cost(pairs: pd.DataFrame) -> _Table:
    table = _Table(["at equal", "pair", "difference", "verdict", "updates", "cost", "budget", "interval over"])
    for _, row in pairs.iterrows():
        name = f"{row['method']} − {row['baseline']}"
        both = [" and ".join(_number(row[f"{side}_{key}"]) for side in _SIDES) for key in ("updates", "cost")]
        counts = [*both, _number(row["budget"]), row["interval_over"]]
        table.rows.append([_words(row["cost"]), name, _points(row), _verdict(row), *counts])
    return table


def _cost(cost: pd.DataFrame) -> _Table:
    table = _Table([_words(name) for name in cost.columns])
    for _, row in cost.iterrows():
        table.rows.append([row["method"], *(_number(row[name]) for name in cost.columns[1:])])
    return table


def _utility(utility: pd.DataFrame) -> _Table:
    names = [name for name in utility.columns if name != "method"]
    table = _Table([_words(name) for name in utility.columns])
    for _, row in utility.iterrows():
        table.rows.append([row["method"], *(_short(row[name]) for name in names)])
    return table


def _exploration(exploration: pd.DataFrame) -> _Table:
    """One row per run; of the topologies' own numbers the shape of the trees."""
    columns = [name for name in exploration.columns if name in (*EXPLORATION_COLUMNS, *_SHAPE)]
    table = _Table([_words(name) for name in columns])
    for _, row in exploration.iterrows():
        table.rows.append([str(row[name]) if name in ("method", "seed") else _short(row[name]) for name in columns])
    return table


def _short(value: float) -> str:
    """Three digits at least; nothing where there is no number."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


def _share(row: pd.Series) -> str:
    if pd.isna(row["mean"]):
        return "no score"
    return f"{100 * row['mean']:.1f} % [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def _plain(row: pd.Series) -> str:
    return "no score" if pd.isna(row["mean"]) else f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"


def _points(row: pd.Series) -> str:
    """A difference of shares in percentage points."""
    if pd.isna(row["mean"]):
        return "no score"
    text = f"{100 * row['mean']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}] points"
    return text.replace("-", "−")


def _verdict(row: pd.Series) -> str:
    if row["low"] > 0:
        return "better"
    return "worse" if row["high"] < 0 else "not shown"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _pictures(files: Mapping[str, Path]) -> list[tuple[str, Markup]]:
    return [(caption, _inline(path, caption)) for caption, path in files.items()]


def _inline(path: Path, caption: str) -> Markup:
    """SVG file → element for the page, without prologue, metadata, addresses and ids nothing refers to."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1).strip())
