"""What was explored at which cost: numbers of a run, worked out by hand, and the same columns for all methods."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from agentbench_rl.evaluation import plots
from agentbench_rl.evaluation.exploration import (
    EXPLORATION_COLUMNS,
    Explored,
    exploration_curves,
    exploration_table,
    informative_share,
)

_COMMON = {"success": 0.5, "return": 0.5, "distinct_states": 3.0, "valid_turns": 1.0}


def ledger(calls: float, tokens: float, steps: float) -> dict[str, float]:
    return {"model_calls": calls, "sampled_tokens": tokens, "optimizer_steps": steps, "wall_seconds": 1.0}


@pytest.fixture(scope="module")
def curves() -> pd.DataFrame:
    shape = {"allocation_10": 0.25, "allocation_2": 0.75, "mean_score": 0.9, "informative_groups": 0.5}
    later = shape | {"allocation_10": 0.75, "allocation_2": 0.25, "mean_score": 0.5, "informative_groups": 1.0}
    groups = {"groups": 10.0, "singleton_groups": 2.0, "frac_zero_std": 0.25}
    return exploration_curves(
        {
            ("grpo", 0): [
                Explored({"a", "b"}, _COMMON, groups, ledger(10, 100, 2), [1.0, 3.0]),
                Explored({"b", "c"}, _COMMON, groups | {"frac_zero_std": 0.5}, ledger(10, 60, 2), [5.0, 3.0]),
            ],
            ("3spo", 0): [
                Explored({"a", "b", "c"}, _COMMON | shape, {}, ledger(4, 40, 5), [2.0]),
                Explored({"d"}, _COMMON | later, {}, ledger(4, 40, 3), []),
            ],
        }
    )


def test_a_state_counts_once_in_a_run_and_costs_add_up(curves: pd.DataFrame) -> None:
    table = exploration_table(curves).set_index("method")
    assert table["distinct_states"].to_dict() == {"grpo": 3, "3spo": 4}
    assert table["states_per_response"].to_dict() == {"grpo": 0.15, "3spo": 0.5}
    assert table["responses_per_step"].to_dict() == {"grpo": 5.0, "3spo": 1.0}
    assert table["tokens_per_step"].to_dict() == {"grpo": 40.0, "3spo": 10.0}
    assert table["gradient_norm"].to_dict() == {"grpo": 3.0, "3spo": 2.0}
    assert table["gradient_norm_variance"]["grpo"] == pytest.approx(8 / 3)
    assert table["gradient_norm_variance"].isna().to_dict() == {"grpo": False, "3spo": True}
    assert table["informative_groups"].to_dict() == pytest.approx({"grpo": 0.5, "3spo": 0.75})


def test_own_metrics_of_a_topology_are_columns_for_all_and_empty_elsewhere(curves: pd.DataFrame) -> None:
    table = exploration_table(curves)
    assert table.columns.tolist() == [*EXPLORATION_COLUMNS, "allocation_2", "allocation_10", "mean_score"]
    assert table.set_index("method").loc["3spo", ["allocation_2", "mean_score"]].tolist() == [0.5, 0.7]
    assert table.set_index("method").loc["grpo", ["allocation_2", "mean_score"]].isna().all()


def test_groups_of_one_tell_nothing() -> None:
    numbers = {"groups": 4.0, "singleton_groups": 4.0, "frac_zero_std": 0.0}
    assert informative_share(Explored(set(), {}, numbers, {}, [])) == 0.0
    assert informative_share(Explored(set(), {}, {"groups": 0.0}, {}, [])) == 0.0


def test_a_run_without_an_optimizer_step_has_no_cost_per_step() -> None:
    table = exploration_table(exploration_curves({("grpo", 0): [Explored({"a"}, {}, {}, ledger(10, 100, 0), [])]}))
    assert table[["responses_per_step", "tokens_per_step"]].isna().all(axis=None)


def test_figures_are_the_same_to_the_byte(curves: pd.DataFrame, tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        paths = [
            *plots.exploration(curves, "distinct_states", "sampled_tokens", tmp_path / name / "states"),
            *plots.exploration(curves, "mean_score", "iteration", tmp_path / name / "scores"),
            *plots.allocations(curves, tmp_path / name / "allocations"),
        ]
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    allocations = written[0][5].decode()
    assert ">3spo</text>" in allocations
    assert ">grpo</text>" not in allocations
