"""Which groups and rows are trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from agentbench_rl.algorithms.frames import columns_needed
from agentbench_rl.algorithms.informative import informative_groups
from agentbench_rl.algorithms.selection import repeated_share, trained_rows, varied_groups
from agentbench_rl.config.algorithm import AlgorithmConfig, SelectionConfig
from agentbench_rl.types import AgentRLError


def test_groups_of_equal_returns_are_not_informative(vectors: dict[str, Any]) -> None:
    vector = vectors["DAPO-3 dynamic sampling keep mask"]
    returns = np.concatenate(vector["groups"])
    groups = np.repeat(np.arange(len(vector["groups"])), [len(group) for group in vector["groups"]])
    assert informative_groups(returns, groups).tolist() == vector["keep"]


def test_a_group_of_one_and_no_group_are_not_informative() -> None:
    assert informative_groups(np.array([1.0]), np.array([0])).tolist() == [False]
    assert informative_groups(np.zeros(0), np.zeros(0, dtype=np.int64)).tolist() == []


def test_an_unknown_return_is_not_an_equal_one() -> None:
    with pytest.raises(AgentRLError, match="not finite"):
        informative_groups(np.array([1.0, np.nan]), np.array([0, 0]))


def test_the_groups_with_the_most_variance_are_kept_and_ties_are_kept_together() -> None:
    returns = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.5])
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    assert varied_groups(returns, groups, 0.25).tolist() == [False, True, True, False]
    assert varied_groups(returns, groups, 0.75).tolist() == [False, True, True, True]
    assert varied_groups(returns, groups, 1.0).all()


def test_stds_that_differ_by_rounding_are_a_tie() -> None:
    returns = np.array([0.1, 0.1, 0.7, 0.7, 0.7, 0.1])
    groups = np.array([0, 0, 0, 1, 1, 1])
    assert varied_groups(returns, groups, 0.5).tolist() == [True, True]


def test_the_share_of_repeated_token_4_grams() -> None:
    responses = [[1, 2, 3], [1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7], [1, 2, 3, 4, 1, 2, 3, 4], [], [1, 2, 3, 4]]
    np.testing.assert_allclose(repeated_share(pd.Series(responses)), [0.0, 0.0, 2 / 3, 1 / 5, 0.0, 0.0])


def test_a_null_response_repeats_nothing() -> None:
    assert repeated_share(pd.Series([None, [7] * 8, []])).tolist() == [0.0, 0.8, 0.0]


def test_4_grams_never_span_two_responses() -> None:
    assert repeated_share(pd.Series([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1], [1, 1]])).tolist() == [0.0] * 4


def test_each_setting_drops_its_rows() -> None:
    rollouts = pd.DataFrame(
        {"valid": [True, False, True], "response_tokens": [5, 3, 8], "response_ids": [[9] * 5, [1, 2, 3], [*range(8)]]}
    )
    for settings, kept in [
        ({}, [True, True, True]),
        ({"drop_invalid": True}, [True, False, True]),
        ({"drop_overlong": 8}, [True, True, False]),
        ({"drop_repetitive": 0.4}, [False, True, True]),
        ({"drop_invalid": True, "drop_overlong": 5}, [False, False, False]),
    ]:
        assert trained_rows(rollouts, SelectionConfig.model_validate(settings)).tolist() == kept


@pytest.mark.parametrize(
    ("part", "settings", "columns"),
    [
        ("advantage", {"estimator": "group_mean"}, ()),
        ("advantage", {"estimator": "gigpo"}, ("anchor_key", "state_key")),
        ("advantage", {"estimator": "gigpo", "anchor": "similarity"}, ("anchor_key", "state_key", "observation")),
        ("advantage", {"estimator": "mt_grpo"}, ("process_reward",)),
        ("advantage", {"estimator": "gdpo", "process_weight": 0.0}, ("response_tokens",)),
        ("reward", {"view": "process"}, ("process_reward",)),
        ("reward", {"tool_call_bonus": {"value": 0.1}}, ("tool_calls",)),
        ("reward", {"overlong": {"max_tokens": 8, "cache_tokens": 2}}, ("response_tokens",)),
        ("selection", {"drop_repetitive": 0.5}, ("response_ids",)),
    ],
)
def test_a_method_reads_only_the_columns_that_it_needs(
    part: str, settings: dict[str, object], columns: tuple[str, ...]
) -> None:
    method = {"source": "test", "advantage": {"estimator": "group_mean"}, part: settings}
    assert columns_needed(AlgorithmConfig.model_validate(method)) == columns
