"""The figures of a comparison, as PNG and SVG with the same bytes for the same numbers.

Colours: Okabe and Ito, "Color Universal Design" (2008). Every method has a colour and a marker, the same in
all figures; bands and whiskers are the intervals of the tables; the start policy is a dashed line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from agentbench_rl.evaluation.tables import START, matched_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5D3A9B", "#8A8A00")
_MARKERS = "osD^vPX*"
_GREY, _LIGHT = "#444444", "#C8C8C8"
#: More methods than this in one panel cannot be told apart; each then gets a panel of its own.
_TOGETHER = 4
_VALIDATION = "success on the validation panel"
_LABELS = {
    "update": "policy updates",
    "sampled_tokens": "sampled training tokens",
    "iteration": "iteration",
    "distinct_states": "distinct states visited",
    "mean_score": "mean score of expanded states",
}
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "figure.facecolor": "white",
    "savefig.dpi": 150,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
}


def learning_curves(curves: pd.DataFrame, x: str, path_stem: Path, *, ylabel: str = _VALIDATION) -> list[Path]:
    """Draw a `curve_table` against `x` ("update" or "sampled_tokens"); returns the PNG and the SVG.

    Up to four methods share a panel; more get one each, with the others in grey behind it.
    """
    return _curves(curves, x, path_stem, ylabel, None)


def cost_matched(
    curves: pd.DataFrame, path_stem: Path, *, cost: str = "sampled_tokens", ylabel: str = _VALIDATION
) -> list[Path]:
    """Draw a `curve_table` against cost, with the largest cost that all methods paid as a vertical line."""
    return _curves(curves, cost, path_stem, ylabel, float(matched_table(curves, cost)["budget"].iloc[0]))


def bars(summary: pd.DataFrame, path_stem: Path) -> list[Path]:
    """Draw success per method with its intervals, over all tasks and per type, from a `summary_table`."""
    methods = list(dict.fromkeys(summary["method"]))
    metrics = [metric for metric in dict.fromkeys(summary["metric"]) if metric.split("/")[0] == "success"]
    size = (2.5, max(1.3, 0.3 * len(methods) + 0.8))
    with _canvas(path_stem, len(metrics), 4, size) as (figure, panels):
        for axes, metric in zip(panels, metrics, strict=True):
            frame = summary[summary["metric"] == metric].set_index("method").reindex(methods)
            _bar_panel(axes, frame)
            axes.set_title("all test tasks" if metric == "success" else metric.split("/", 1)[1], loc="left")
        figure.supxlabel("success", fontsize=9)
    return _paths(path_stem)


def exploration(curves: pd.DataFrame, y: str, x: str, path_stem: Path) -> list[Path]:
    """Draw a column of `exploration_curves` against another: a line per run, a colour and marker per method."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    methods = list(dict.fromkeys(curves["method"]))
    with _canvas(path_stem, 1, 1, (7.2, 3.4)) as (_, panels):
        for (method, _seed), run in curves.dropna(subset=[y]).groupby(["method", "seed"], sort=False):
            colour, marker = _look(str(method), methods)
            first = run["seed"].iloc[0] == curves.loc[curves["method"] == method, "seed"].iloc[0]
            panels[0].plot(run[x], run[y], color=colour, marker=marker, label=method if first else None)
        panels[0].set(xlabel=_LABELS[x], ylabel=_LABELS[y], xlim=(0, None), ylim=(0, None))
        panels[0].xaxis.set_major_locator(MaxNLocator(6, integer=x == "iteration"))
        panels[0].xaxis.set_major_formatter("{x:.0f}" if x == "iteration" else EngFormatter(sep=""))
        panels[0].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _paths(path_stem)


def allocations(curves: pd.DataFrame, path_stem: Path) -> list[Path]:
    """Draw how many responses states were allotted: shares over all iterations of `exploration_curves`, per method."""
    columns = [name for name in curves.columns if name.startswith("allocation_")]
    counts = [int(name.removeprefix("allocation_")) for name in columns]
    shares = curves.dropna(subset=columns, how="all").groupby("method", sort=False)[columns].mean().fillna(0.0)
    methods = list(dict.fromkeys(curves["method"]))
    width = 0.8 / len(shares)
    with _canvas(path_stem, 1, 1, (7.2, 3.0)) as (_, panels):
        for place, (method, row) in enumerate(shares.iterrows()):
            at = [count + width * (place - (len(shares) - 1) / 2) for count in counts]
            panels[0].bar(at, row, width=width, color=_look(str(method), methods)[0], label=method)
        panels[0].set(xlabel="responses allotted to a state", ylabel="share of states", xticks=counts)
        panels[0].grid(axis="x", visible=False)
        panels[0].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _paths(path_stem)


def _bar_panel(axes: Axes, frame: pd.DataFrame) -> None:
    methods = list(frame.index)
    numbers = zip(methods, frame["mean"], frame["low"], frame["high"], strict=True)
    for row, (method, mean, low, high) in enumerate(numbers):
        if pd.isna(mean):
            axes.text(0.02, row, "no scored episode", va="center", fontsize=8, color=_GREY)
            continue
        axes.barh(row, mean, height=0.62, color=_look(method, methods)[0], alpha=0.85)
        axes.plot([low, high], [row, row], color="black", linewidth=1.2, solid_capstyle="butt")
        axes.text(min(high + 0.03, 1.02), row, f"{100 * mean:.0f} %", va="center", fontsize=8)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.set_xlim(0, 1.18)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "50 %", "", "100 %"])
    axes.grid(axis="y", visible=False)


def _curves(curves: pd.DataFrame, x: str, path_stem: Path, ylabel: str, budget: float | None) -> list[Path]:
    methods = [method for method in dict.fromkeys(curves["method"]) if method != START]
    groups = [[method] for method in methods] if len(methods) > _TOGETHER else [methods]
    with _canvas(path_stem, len(groups), 3, (7.2, 4.0) if len(groups) == 1 else (2.9, 2.2)) as (
        figure,
        panels,
    ):
        for axes, shown in zip(panels, groups, strict=True):
            _curve_panel(axes, curves, x, shown, methods)
            if budget is not None:
                axes.axvline(budget, color=_GREY, linestyle=":", linewidth=1.1, label="equal cost")
        if len(groups) == 1:
            panels[0].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        else:
            for axes, method in zip(panels, methods, strict=True):
                axes.set_title(method, loc="left")
            notes = f"grey: the other methods; dashed: {START}" + ("; dotted: equal cost" if budget else "")
            figure.suptitle(notes, fontsize=9, color=_GREY)
        figure.supxlabel(_LABELS.get(x, x), fontsize=9)
        figure.supylabel(ylabel, fontsize=9)
    return _paths(path_stem)


def _curve_panel(axes: Axes, curves: pd.DataFrame, x: str, shown: Sequence[str], methods: Sequence[str]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    for method in methods:
        frame = curves[curves["method"] == method].sort_values(x)
        if method not in shown:
            axes.plot(frame[x], frame["mean"], color=_LIGHT, linewidth=0.8, zorder=1)
            continue
        colour, marker = _look(method, methods)
        axes.fill_between(frame[x], frame["low"], frame["high"], color=colour, alpha=0.16, linewidth=0)
        axes.plot(frame[x], frame["mean"], color=colour, marker=marker, label=method, zorder=3)
    for level in curves.loc[curves["method"] == START, "mean"].tail(1):
        axes.axhline(level, color=_GREY, linestyle="--", linewidth=1.1, label=START)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=x == "update"))
    axes.xaxis.set_major_formatter("{x:.0f}" if x == "update" else EngFormatter(sep=""))


def _look(method: str, methods: Sequence[str]) -> tuple[str, str]:
    """Colour and marker of a method: by its place among the trained methods; the start policy is grey."""
    if method == START:
        return _GREY, "o"
    place = [other for other in methods if other != START].index(method)
    return _COLOURS[place % len(_COLOURS)], _MARKERS[(place + place // len(_COLOURS)) % len(_MARKERS)]


def _paths(path_stem: Path) -> list[Path]:
    return [path_stem.with_name(path_stem.name + suffix) for suffix in (".png", ".svg")]


@contextmanager
def _canvas(
    path_stem: Path, count: int, columns: int, size: tuple[float, float]
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `count` panels of `size` inches, written without anything that differs between two runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(columns, count)
    rows = -(-count // columns)
    with pyplot.style.context(["default", _STYLE | {"svg.hashsalt": path_stem.name}]):
        figure, grid = pyplot.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, layout="constrained")
        figure.set_size_inches(size[0] * columns, size[1] * rows)
        for axes in grid.flat[count:]:
            axes.set_visible(False)
        yield figure, list(grid.flat[:count])
        path_stem.parent.mkdir(parents=True, exist_ok=True)
        png, svg = _paths(path_stem)
        figure.savefig(png, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
