"""Pairs of methods at equal updates, episodes and tokens, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest

from agentbench_rl.evaluation.equal_cost import EQUAL_COST_COLUMNS, equal_cost_table
from agentbench_rl.evaluation.tables import MethodResult
from tests.evaluation.conftest import curve, episodes

PLAYED = episodes(("a", "put", "success", 2), ("b", "put", "failure", 4))
START = MethodResult("sft", None, PLAYED, curve=curve((0, 0, 0.0)))
#: 8 episodes and 100 tokens an update.
HOST = curve((0, 0, (0.0, 0.0)), (3, 300, (0.0, 0.5)), (6, 600, (0.0, 1.0)))
#: 16 episodes and 240 tokens an update: after 3 updates it has played what the host plays in 6, but sampled more.
SWAPPING = curve((0, 0, (0.0, 0.0)), (3, 720, (1.0, 0.5)), (6, 1440, (1.0, 1.0)), episodes_per_update=16)


def table(results: Sequence[MethodResult]) -> pd.DataFrame:
    made = equal_cost_table([START, *results], resamples=500)
    assert list(made.columns) == EQUAL_COST_COLUMNS
    return made.set_index(["cost", "method", "baseline"])


def test_each_stands_at_its_last_validation_within_the_largest_cost_that_both_paid() -> None:
    made = table([MethodResult("grpo", 0, PLAYED, curve=HOST), MethodResult("rspo", 0, PLAYED, curve=SWAPPING)])
    assert len(made) == 3
    spent = ["budget", "method_updates", "method_cost", "baseline_updates", "baseline_cost"]
    reached = ["method_success", "baseline_success", "mean"]
    by_updates = made.loc[("updates", "rspo", "grpo")]
    assert tuple(by_updates[spent]) == (6, 6, 6, 6, 6)
    assert tuple(by_updates[reached]) == (1.0, 0.5, 0.5)
    by_episodes = made.loc[("episodes", "rspo", "grpo")]
    assert tuple(by_episodes[spent]) == (48, 3, 48, 6, 48)
    assert tuple(by_episodes[reached]) == (0.75, 0.5, 0.25)
    # Task a: 1 - 0; task b: 0.5 - 1.
    assert tuple(by_episodes[["low", "high", "tasks"]]) == (-0.5, 1.0, 2)
    by_tokens = made.loc[("sampled_tokens", "rspo", "grpo")]
    assert tuple(by_tokens[spent]) == (600, 0, 0, 6, 600)
    assert tuple(by_tokens[reached]) == (0.0, 0.5, -0.5)


def test_the_costs_of_a_method_are_means_over_its_seeds_and_its_seeds_are_resampled() -> None:
    dearer = curve((0, 0, 0.0), (3, 400, 0.0), (6, 1000, 0.0))
    both = [MethodResult("grpo", 0, PLAYED, curve=HOST), MethodResult("grpo", 1, PLAYED, curve=dearer)]
    row = table([*both, MethodResult("rspo", 0, PLAYED, curve=SWAPPING)]).loc[("sampled_tokens", "rspo", "grpo")]
    # The second seed's 1,000 tokens are more than the budget, the mean of 800 is not.
    assert tuple(row[["budget", "method_updates", "baseline_updates", "baseline_cost"]]) == (800, 3, 6, 800)
    assert tuple(row[["method_success", "baseline_success", "mean"]]) == (0.75, 0.25, 0.5)
    assert row["interval_over"] == "training seeds"


def test_updates_that_a_seed_was_not_validated_at_and_tasks_without_a_score_are_left_out() -> None:
    shorter = HOST[HOST["update"] < 6]
    runs = [MethodResult("grpo", seed, PLAYED, curve=own) for seed, own in enumerate((HOST, shorter))]
    swapping = SWAPPING.assign(by_task=[{"a": 0.0}, {"a": 1.0}, {"a": 1.0}])
    row = table([*runs, MethodResult("rspo", 0, PLAYED, curve=swapping)]).loc[("updates", "rspo", "grpo")]
    assert tuple(row[["method_updates", "baseline_updates", "tasks", "mean"]]) == (3, 3, 1, 1.0)


def test_every_pair_of_trained_methods_has_a_row_and_the_start_policy_has_none() -> None:
    made = table([MethodResult(name, 0, PLAYED, curve=HOST) for name in ("x", "y", "z")])
    pairs = [("y", "x"), ("z", "x"), ("z", "y")]
    assert list(made.index) == [(cost, *pair) for cost in ("updates", "episodes", "sampled_tokens") for pair in pairs]
    assert made["mean"].tolist() == pytest.approx([0.0] * 9)
