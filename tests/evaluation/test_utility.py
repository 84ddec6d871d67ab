"""What an answer costs: counts of a team's episodes, utility, and Pass@k beside the mean over samples."""

from __future__ import annotations

import pandas as pd
import pytest

from agentbench_rl.evaluation.tables import MethodResult, summary_table
from agentbench_rl.evaluation.utility import utility_table, with_counts
from tests.evaluation.conftest import episodes


def test_s14_the_costs_of_an_episode_are_those_of_the_worked_example() -> None:
    """A search by two, one by one, an answer: tokens 40, 50, 30, 60."""
    rollouts = pd.DataFrame({"tree_id": "t", "valid": [True, False, True, True], "tool_calls": [1, 1, 1, 0]})
    played = pd.DataFrame({"episode_id": ["e", "f"], "tree_id": ["t", "none"], "sampled_tokens": [180, 0]})
    counted = with_counts(played, rollouts).set_index("episode_id")
    columns = ["sampled_tokens", "calls", "tool_calls", "invalid_turns"]
    assert counted.loc["e", columns].tolist() == [180, 4, 3, 1]
    assert counted.loc["f", columns].tolist() == [0, 0, 0, 0]


def team(*rows: tuple[str, str, int]) -> pd.DataFrame:
    """Episodes of three transitions and four responses: task, ending, tokens."""
    played = episodes(*((task, "math", ending, 3) for task, ending, _ in rows))
    return played.assign(sampled_tokens=[tokens for *_, tokens in rows], calls=4, tool_calls=3)


def test_s14_utility_is_that_of_the_worked_example() -> None:
    endings = ["success"] * 3 + ["failure"] + ["success"] * 2 + ["failure"] * 2
    tokens = [170, 190, 180, 180, 200, 240, 220, 220]
    played = team(*zip("aaaabbbb", endings, tokens, strict=True))
    row = utility_table([MethodResult("srpo", 0, played)]).iloc[0]
    assert row["utility"] == pytest.approx(3125.0)
    assert tuple(row[["tasks", "success", "sampled_tokens", "calls", "tool_calls"]]) == (2, 0.625, 200.0, 4.0, 3.0)
    assert row["set_size"] == pytest.approx(4 / 3)


def test_faulty_episodes_cost_nothing_and_a_run_of_nothing_else_has_no_numbers() -> None:
    healthy = team(("a", "success", 100), ("a", "failure", 300))
    faulty = team(("a", "success", 100), ("a", "failure", 300), ("a", "timeout", 9000))
    tables = [utility_table([MethodResult("srpo", 0, played)]) for played in (healthy, faulty)]
    pd.testing.assert_frame_equal(*tables)
    nothing = utility_table([MethodResult("srpo", 0, team(("a", "timeout", 5)))]).iloc[0]
    assert pd.isna(nothing["utility"])
    assert nothing["tasks"] == 0


def test_pass_at_k_asks_for_any_success_of_tasks_whose_every_sample_is_scored() -> None:
    played = team(
        *(("a", "success", 1), ("a", "failure", 1), ("b", "failure", 1), ("b", "failure", 1)),
        *(("c", "success", 1), ("c", "env_error", 1)),
    )
    summary = summary_table([MethodResult("srpo", 0, played)], resamples=200).set_index("metric")
    row = summary.loc["pass_at_2"]
    assert (row["mean"], row["low"], row["high"], row["episodes"]) == (0.5, 0.0, 1.0, 4)
    assert summary.loc["success", "mean"] == pytest.approx(0.5)
    once = summary_table([MethodResult("srpo", 0, team(("a", "success", 1)))], resamples=50)
    assert not once["metric"].str.startswith("pass_at").any()


def test_the_rate_of_malformed_responses_counts_members_and_not_transitions() -> None:
    played = team(("a", "success", 1)).assign(invalid_turns=4)
    summary = summary_table([MethodResult("srpo", 0, played)], resamples=50).set_index("metric")
    assert summary.loc["invalid_turn_rate", "mean"] == 1.0
