from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentbench_rl.evaluation import plots
from agentbench_rl.evaluation.report import ReportContext, Transcript, write_report
from agentbench_rl.evaluation.tables import (
    MethodResult,
    cost_table,
    curve_table,
    matched_table,
    paired_table,
    summary_table,
)


def context(results: list[MethodResult], figures: dict[str, Path]) -> ReportContext:
    return ReportContext(
        title="GRPO & BPO",
        description="Two methods.",
        budget="10 updates",
        summary=summary_table(results, resamples=100),
        paired=paired_table(results, resamples=100),
        cost=cost_table(results),
        matched=matched_table(curve_table(results)),
        figures=figures,
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
    assert re.search(r"grpo\s+83\.3 % \[50\.0, 100\.0\]\s+\+66\.7 \[\+50\.0, \+100\.0\] points\s+better", text)
    assert re.search(r"bpo − grpo\s+−25\.0 \[−50\.0, \+0\.0\] points\s+not shown", text)
    assert "no score" in text


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
