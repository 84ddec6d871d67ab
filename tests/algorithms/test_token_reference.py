"""GAE and REINFORCE++ on random rollouts equal a plain implementation, in memory and through files."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_chains import TokenChain, method, random_chains, token_frames
from token_reference import reference

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.stages.advantage import write_advantages

SEEDS = st.integers(0, 2**32 - 1)
METHODS = {
    "gae-row": ("gae", {"granularity": "row"}),
    "gae-token": ("gae", {"granularity": "token"}),
    "gae-turn": ("gae", {"granularity": "turn"}),
    "gae-bi-level": ("gae", {"granularity": "bi_level"}),
    "reinforcepp-row": ("reinforcepp", {"granularity": "row"}),
    "reinforcepp-token": ("reinforcepp", {"granularity": "token"}),
    "reinforcepp-baseline": ("reinforcepp_baseline", {}),
}
EVERY = pytest.mark.parametrize("name", METHODS)


def drawn_method(name: str, seed: int) -> AlgorithmConfig:
    estimator, fixed = METHODS[name]
    generator = random.Random(seed)
    drawn: dict[str, object] = dict(fixed)
    if estimator != "reinforcepp_baseline":
        drawn["gamma"] = generator.choice([1.0, 0.99, 0.9])
    if estimator == "gae":
        drawn |= {"lam": generator.choice([1.0, 0.9, 0.0]), "turn_gamma": generator.choice([0.95, 1.0])}
        drawn["whiten"] = generator.random() < 0.7
        drawn["truncation"] = "terminal" if name == "gae-row" else generator.choice(["terminal", "bootstrap"])
    if estimator == "reinforcepp_baseline":
        drawn["statistics"] = generator.choice(["per_row", "per_trajectory"])
        drawn["singleton"] = generator.choice(["zero", "raw"])
    kl = 0.0 if estimator == "reinforcepp_baseline" else generator.choice([0.0, 0.1])
    return method(estimator, generator.choice([0.0, 0.1]), generator.choice([1.0, 10.0]), kl, **drawn)


def assert_equal(frame: pd.DataFrame, chains: list[TokenChain], config: AlgorithmConfig) -> None:
    advantages, targets = reference(chains, config)
    lengths = [len(row) for row in advantages]
    per_token = "token_advantages" in frame and frame["token_advantages"].notna().all()
    found = (
        frame["token_advantages"] if per_token else [[a] * n for a, n in zip(frame["advantage"], lengths, strict=True)]
    )
    assert [len(row) for row in found] == lengths
    close = {"rtol": 2e-6, "atol": 2e-6}
    np.testing.assert_allclose(list(chain(*found)), list(chain(*advantages)), **close)
    if targets is not None:
        np.testing.assert_allclose(list(chain(*frame["value_targets"])), list(chain(*targets)), **close)


@EVERY
@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_agrees_with_a_slow_reference(name: str, seed: int) -> None:
    chains, config = random_chains(seed), drawn_method(name, seed)
    rollouts, episodes, scores = token_frames(chains)
    frame, diagnostics = compute_advantages(rollouts, episodes, config, scores)
    assert_equal(frame, chains, config)
    healthy = [turn for episode in chains if episode.ending != "env_error" for turn in episode.turns]
    if name != "reinforcepp-baseline":
        assert diagnostics["empty_responses"] == sum(not turn.values for turn in healthy)


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_files_give_the_same(tmp_path: Path, name: str, seed: int) -> None:
    chains, config = random_chains(seed), drawn_method(name, seed)
    rollouts, episodes, scores = token_frames(chains)
    for file, frame in (("rollouts", rollouts), ("episodes", episodes), ("scores", scores)):
        frame.sample(frac=1.0, random_state=seed).to_parquet(tmp_path / f"{file}.parquet", row_group_size=7)
    write_advantages(tmp_path, config, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").to_pandas().set_index("turn_id")
    healthy = {str(number) for number, episode in enumerate(chains) if episode.ending != "env_error"}
    ordered = [turn for turn in rollouts["turn_id"] if turn.split("/")[0] in healthy]
    assert sorted(found.index) == sorted(ordered)
    assert_equal(found.loc[ordered].reset_index(), chains, config)


@EVERY
@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_permuting_rows_and_renaming_ids_changes_no_bit(name: str, seed: int) -> None:
    rollouts, episodes, scores = token_frames(random_chains(seed, longest=8))
    config = drawn_method(name, seed)
    expected = by_turn(compute_advantages(rollouts, episodes, config, scores)[0])
    shuffled = [frame.sample(frac=1.0, random_state=seed % 2**32) for frame in (rollouts, episodes, scores)]
    renamed = [
        frame.assign(
            **{
                name: frame[name].map(lambda value: f"{seed}-{str(value)[::-1]}", na_action="ignore")
                for name in ("turn_id", "parent_id", "tree_id", "group_id", "task_id", "leaf_turn_id")
                if name in frame
            }
        )
        for frame in shuffled
    ]
    found = by_turn(compute_advantages(renamed[0], renamed[1], config, renamed[2])[0])
    assert found == {f"{seed}-{turn[::-1]}": credit for turn, credit in expected.items()}


def by_turn(frame: pd.DataFrame) -> dict[str, tuple[float, ...]]:
    columns = [name for name in ("advantage", "token_advantages", "value_targets") if name in frame]
    return {
        row["turn_id"]: tuple(value for name in columns for value in np.atleast_1d(row[name]))
        for row in frame.to_dict("records")
    }
