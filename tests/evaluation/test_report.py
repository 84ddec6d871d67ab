from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentbench_rl.evaluation import plots
from agentbench_rl.evaluation.equal_cost import equal_cost_table
from agentbench_rl.evaluation.exploration import Explored, exploration_curves, exploration_table
from agentbench_rl.evaluation.report import ReportContext, Transcript, write_report
from agentbench_rl.evaluation.tables import (
    MethodResult,
    cost_table,
    curve_table,
    matched_table,
    paired_table,
    summary_table,
)
from agentbench_rl.evaluation.utility import utility_table

LEDGER = {"model_calls": 40.0, "sampled_tokens": 200.0, "optimizer_steps": 2.0}
EXPLORED = {
    ("grpo", 0): [Explored({"a", "b"}, {}, {}, LEDGER, [1.0, 2.0])],
    ("bpo", 0): [Explored({"a"}, {}, {}, LEDGER, [1.0, 2.0])],
}


def context(results: list[MethodResult], figures: dict[str, Path]) -> ReportContext:
    return ReportContext(
        title="GRPO & BPO",
        description="Two methods.",
        budget="10 updates",
        summary=summary_table(results, resamples=100),
        paired=paired_table(results, resamples=100),
        cost=cost_table(results),
        matched=matched_table(curve_table(results)),
        at_equal_cost=equal_cost_table(results, resamples=100),
        utility=utility_table(results),
        exploration=exploration_table(exploration_curves(EXPLORED)),
        figures=figures,
        exploration_figures={},
        trees={},
        config={"training": {"note": "<script>alert(1)</script>"}},
        panels={"test": "ab" * 32},
        packages={"numpy": "2.3"},
        transcripts=[Transcript("a · success", [("You see a <desk>.", "take pen & go")])],
    )


@pytest.fixture(scope="module")
def html(results: list[MethodResult], tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("report")
    curves = curve_table(results)
    svg = plots.learning_curves(curves, "update", tmp_path / "curves")[1]
    bars = plots.bars(summary_table(results, resamples=50), tmp_path / "bars")[1]
    page = write_report(tmp_path, context(results, {"Learning curves": svg, "Success & more": bars}))
    return page.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_its_ids_are_unique(html: str) -> None:
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    references = set(re.findall(r'(?:href="|url\()#([^")]+)', html))
    assert references
    assert references <= set(ids)
    assert [element.get("role") for element in root.iter("svg")] == ["img", "img"]


def test_the_page_needs_no_network(html: str) -> None:
    assert "http" not in html
    assert not re.findall(r"<(?:script|link|img|iframe)|@import|url\((?!#)", html)


def test_what_others_wrote_is_shown_and_not_interpreted(html: str) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "You see a &lt;desk&gt;." in html


def test_the_page_says_that_one_seed_tells_nothing_about_other_runs(html: str) -> None:
    assert "One training seed (every method): intervals are over test tasks, not over training runs." in html
    assert "3 of 15 test episodes ended in an infrastructure fault" in html


def test_the_page_shows_numbers_with_intervals_and_says_what_is_not_shown(html: str) -> None:
    text = re.sub(r"<[^>]+>", " ", html)
    assert re.search(r"grpo\s+83\.3 % \[50\.0, 100\.0\]\s+100\.0 % \[100\.0, 100\.0\]\s+\+66\.7", text)
    assert re.search(r"\+66\.7 \[\+50\.0, \+100\.0\] points\s+better", text)
    assert re.search(r"bpo − grpo\s+−25\.0 \[−50\.0, \+0\.0\] points\s+not shown", text)
    assert "no score" in text
    assert re.search(r"sampled tokens\s+bpo − grpo\s+\+35\.0 [^]]+\] points\s+better\s+5 and 5\s+5,000 and 4,000", text)


@pytest.mark.parametrize(("level", "shown"), [(0.95, "95 %"), (0.975, "97.5 %"), (0.9, "90 %"), (0.999, "99.9 %")])
def test_the_level_of_the_intervals_is_not_rounded(
    results: list[MethodResult], tmp_path: Path, level: float, shown: str
) -> None:
    page = write_report(tmp_path, replace(context(results, {}), level=level)).read_text(encoding="utf-8")
    assert f"{shown} interval" in page


def test_a_metric_that_a_method_lacks_leaves_its_cell_empty_and_the_others_in_place(
    results: list[MethodResult], tmp_path: Path
) -> None:
    whole = context(results, {})
    lacking = (whole.summary["method"] == "grpo") & (whole.summary["metric"] == "success/put")
    pages = [
        write_report(tmp_path, replace(whole, summary=summary)).read_text(encoding="utf-8")
        for summary in (whole.summary, whole.summary[~lacking])
    ]
    tables = [ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>")).iter("table") for page in pages]
    rows = [next(rows for table in found if "heat" in (rows := _rows(table))["method"]) for found in tables]
    put = rows[0]["method"].index("put")
    assert rows[0]["grpo"][put] != ""
    rows[0]["grpo"][put] = ""
    assert rows[0] == rows[1]


def _rows(table: ElementTree.Element) -> dict[str, list[str]]:
    """Cells of a table by the first of each row."""
    cells = [["".join(cell.itertext()).strip() for cell in row] for row in table.iter("tr")]
    return {first: rest for first, *rest in cells}


def test_several_seeds_are_described_as_such(results: list[MethodResult], tmp_path: Path) -> None:
    more = [*results, *(replace(result, seed=1) for result in results if result.seed is not None)]
    page = write_report(tmp_path, context(more, {})).read_text(encoding="utf-8")
    assert "2 training seeds (every method): intervals resample training runs and test tasks together." in page
    assert "One training seed" not in page
    mixed = write_report(tmp_path, context([*results, more[3]], {})).read_text(encoding="utf-8")
    assert "One training seed (bpo)" in mixed
    assert "2 training seeds (grpo)" in mixed


def test_the_same_context_gives_the_same_bytes(results: list[MethodResult], tmp_path: Path) -> None:
    pages = [write_report(tmp_path / name, context(results, {})).read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]
