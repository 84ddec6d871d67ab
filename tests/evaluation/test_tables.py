from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from agentbench_rl.evaluation.tables import (
    SUMMARY_COLUMNS,
    MethodResult,
    cost_table,
    curve_table,
    matched_table,
    paired_table,
    summary_table,
    write_csv,
)
from agentbench_rl.types import AgentRLError
from tests.evaluation.conftest import curve, episodes


@pytest.fixture
def summary(results: list[MethodResult]) -> pd.DataFrame:
    return summary_table(results, resamples=500).set_index(["method", "metric"])


def test_the_start_policy_comes_first_and_the_columns_are_fixed(results: list[MethodResult]) -> None:
    table = summary_table(results, resamples=50)
    assert list(table.columns) == SUMMARY_COLUMNS
    assert list(dict.fromkeys(table["method"])) == ["sft", "grpo", "bpo"]


def test_success_equals_the_computation_by_hand(summary: pd.DataFrame) -> None:
    # Tasks: a = 1/2, b = 0, c = 0 (its fault has no score); then the mean over the three tasks.
    assert summary.loc[("sft", "success"), "mean"] == pytest.approx(1 / 6)
    # a = 1, b = 1/2, c = 1.
    assert summary.loc[("grpo", "success"), "mean"] == pytest.approx(2.5 / 3)
    assert summary.loc[("grpo", "success/put"), "mean"] == pytest.approx(0.75)
    assert summary.loc[("grpo", "success/heat"), "mean"] == 1.0
    row = summary.loc[("grpo", "success_minus_sft")]
    assert row["mean"] == pytest.approx(2 / 3)
    assert (row["low"], row["high"]) == (pytest.approx(0.5), pytest.approx(1.0))
    assert tuple(summary.loc[("grpo", "success"), ["seeds", "sampled_tokens", "updates"]]) == (1, 8000, 10)
    assert summary.loc[("sft", "success"), "seeds"] == 0
    assert set(summary["interval_over"]) == {"test tasks"}


def test_lengths_are_averaged_over_trajectories_and_not_over_turns(summary: pd.DataFrame) -> None:
    # a = (2 + 4) / 2, b = (6 + 10) / 2, c = 5.
    assert summary.loc[("grpo", "episode_length"), "mean"] == pytest.approx(16 / 3)
    # One invalid turn in every episode: a = (1/2 + 1/4) / 2, b = (1/6 + 1/10) / 2, c = 1/5.
    expected = (0.375 + (1 / 6 + 0.1) / 2 + 0.2) / 3
    assert summary.loc[("grpo", "invalid_turn_rate"), "mean"] == pytest.approx(expected)


def test_infrastructure_endings_are_left_out_and_counted(summary: pd.DataFrame) -> None:
    assert summary.loc[("sft", "success"), "episodes"] == 5
    assert summary.loc[("sft", "ending/infrastructure"), "episodes"] == 6
    assert summary.loc[("sft", "ending/infrastructure"), "mean"] == pytest.approx((0 + 0 + 0.5) / 3)
    assert summary.loc[("sft", "ending/truncated"), "mean"] == pytest.approx(1 / 3)
    # Every episode of this type was faulty: there is no number, rather than a zero.
    assert summary.loc[("bpo", "success/heat"), "episodes"] == 0
    assert pd.isna(summary.loc[("bpo", "success/heat"), "mean"])
    assert summary.loc[("bpo", "success"), "mean"] == 0.5


def test_a_missing_success_without_a_fault_is_refused(results: list[MethodResult]) -> None:
    broken = results[0].episodes.assign(success=[True, None, True, False, None, True])
    with pytest.raises(AgentRLError, match="'e1' has no `success`"):
        summary_table([replace(results[0], episodes=broken)])


def test_pairs_rest_on_the_tasks_that_both_sides_have_a_score_for(results: list[MethodResult]) -> None:
    table = paired_table(results, resamples=500).set_index(["method", "baseline"])
    assert list(table.index) == [("grpo", "sft"), ("bpo", "sft"), ("bpo", "grpo")]
    row = table.loc[("bpo", "grpo")]
    # a: 1 - 1, b: 0 - 1/2; c has no score for bpo.
    assert (row["mean"], row["low"], row["high"]) == (-0.25, -0.5, 0.0)
    assert (row["tasks"], row["tasks_without_score"]) == (2, 1)


def test_different_panels_and_repeated_seeds_are_refused(results: list[MethodResult]) -> None:
    foreign = MethodResult("ppo", 0, episodes(("z", "put", "success", 1)))
    with pytest.raises(AgentRLError, match="'ppo', seed 0, was evaluated on other tasks"):
        summary_table([*results, foreign])
    with pytest.raises(AgentRLError, match=r"'grpo' has seeds \[0, 0\]"):
        summary_table([*results, results[0]])
    with pytest.raises(AgentRLError, match=r"'sft' has seeds \[3\]"):
        summary_table([replace(results[1], seed=3)])


def test_several_seeds_are_one_row_with_an_interval_over_seeds(results: list[MethodResult]) -> None:
    second = replace(results[0], seed=1, episodes=results[1].episodes, sampled_tokens=9000)
    summary = summary_table([*results, second], resamples=500).set_index(["method", "metric"])
    row = summary.loc[("grpo", "success")]
    assert row["mean"] == pytest.approx((2.5 / 3 + 1 / 6) / 2)
    assert tuple(row[["interval_over", "seeds", "episodes", "sampled_tokens"]]) == (
        "training seeds",
        2,
        10,
        8500,
    )
    assert summary.loc[("bpo", "success"), "interval_over"] == "test tasks"


def test_cost_has_the_ledger_and_the_price_of_each_level(results: list[MethodResult]) -> None:
    table = cost_table(results).set_index("method")
    assert table.loc["grpo", "wall_seconds"] == 60.0
    assert table.loc["grpo", "env_steps"] == 640
    assert table.loc["grpo", "sampled_tokens_to_50"] == 4000
    assert table.loc["grpo", "updates_to_50"] == 5
    assert pd.isna(table.loc["grpo", "sampled_tokens_to_90"])
    assert table.loc["bpo", "sampled_tokens_to_90"] == 5000
    assert pd.isna(table.loc["sft", "env_steps"])


def test_methods_are_matched_at_the_largest_cost_that_all_paid(results: list[MethodResult]) -> None:
    matched = matched_table(curve_table(results)).set_index("method")
    assert set(matched["budget"]) == {5000}
    assert tuple(matched.loc["grpo", ["update", "sampled_tokens", "mean"]]) == (5, 4000, 0.55)
    assert tuple(matched.loc["bpo", ["update", "sampled_tokens", "mean"]]) == (5, 5000, 0.9)


def test_curves_of_seeds_are_averaged_where_every_seed_was_evaluated(results: list[MethodResult]) -> None:
    second = replace(results[0], seed=1, curve=curve((0, 0, 0.4), (5, 6000, 0.65)))
    table = curve_table([*results, second], resamples=500)
    grpo = table[table["method"] == "grpo"]
    assert list(grpo["update"]) == [0, 5]
    assert list(grpo["mean"]) == pytest.approx([0.3, 0.6])
    assert list(grpo["sampled_tokens"]) == [0, 5000]
    assert set(grpo["interval_over"]) == {"training seeds"}


def test_csv_is_the_same_to_the_byte(results: list[MethodResult], tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_csv(summary_table(results, resamples=200), tmp_path / f"{name}.csv")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    frame = pd.DataFrame({"a": ["x", "y"], "b": [-1e-9, 1 / 3], "c": pd.array([1, None], dtype="Int64")})
    write_csv(frame, tmp_path / "three.csv")
    assert (tmp_path / "three.csv").read_bytes() == b"a,b,c\nx,0.000000,1\ny,0.333333,\n"
