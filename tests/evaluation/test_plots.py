from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentbench_rl.evaluation import plots
from agentbench_rl.evaluation.tables import MethodResult, curve_table, summary_table


def test_figures_are_the_same_to_the_byte(results: list[MethodResult], tmp_path: Path) -> None:
    curves, summary = curve_table(results), summary_table(results, resamples=50)
    written = []
    for name in ("one", "two"):
        directory = tmp_path / name
        paths = [
            *plots.learning_curves(curves, "update", directory / "curves"),
            *plots.cost_matched(curves, directory / "cost"),
            *plots.bars(summary, directory / "bars"),
        ]
        assert [path.suffix for path in paths] == [".png", ".svg"] * 3
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]


@pytest.mark.parametrize(("count", "panels"), [(4, 1), (5, 5)])
def test_more_methods_than_can_be_told_apart_get_a_panel_each(
    results: list[MethodResult], tmp_path: Path, count: int, panels: int
) -> None:
    many = [results[1], *(replace(results[0], method=f"m{index}") for index in range(count))]
    _, svg = plots.learning_curves(curve_table(many), "sampled_tokens", tmp_path / "curves")
    text = svg.read_text(encoding="utf-8")
    # A hidden panel of the grid is not written.
    assert text.count('<g id="axes_') == panels
    assert all(f">m{index}</text>" in text for index in range(count))
    assert ">sft</text>" in text or "dashed: sft" in text


def test_only_the_cost_matched_figure_marks_the_equal_cost(results: list[MethodResult], tmp_path: Path) -> None:
    _, svg = plots.cost_matched(curve_table(results), tmp_path / "cost")
    assert "equal cost" in svg.read_text(encoding="utf-8")
    _, svg = plots.learning_curves(curve_table(results), "sampled_tokens", tmp_path / "curves")
    assert "equal cost" not in svg.read_text(encoding="utf-8")
