"""Every group-level method equals the specification in plain loops, in memory and through files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from chain_frames import Chain, frames
from group_reference import slow_advantages
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import ESTIMATORS, random_chains, random_method, random_scores, turns_compared

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.stages.advantage import write_advantages

SEEDS = st.integers(0, 2**32)
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
EVERY = pytest.mark.parametrize("estimator", ESTIMATORS)


def expected(chains: list[Chain], config: AlgorithmConfig, scores: pd.DataFrame, iteration: int = 0) -> list[float]:
    ours = scores.set_index("turn_id").loc[turns_compared(chains)]
    beta = config.reward.kl_coefficient
    pairs = zip(ours["old_logprobs"], ours["reference_logprobs"], strict=True)
    kl = [-beta * (sum(old) - sum(reference)) for old, reference in pairs]
    return slow_advantages(chains, config, iteration, ours["entropies"].tolist(), kl)


@EVERY
@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_random_rollouts(estimator: str, seed: int) -> None:
    chains = random_chains(seed, longest=50, faults=True)
    config, iteration = random_method(seed + 1, (estimator,), whole=True), seed % 6
    rollouts, episodes = frames(chains)
    scores = random_scores(seed, rollouts)
    frame, _ = compute_advantages(rollouts, episodes, config, scores, iteration)
    assert frame["turn_id"].tolist() == turns_compared(chains)
    if len(frame):
        np.testing.assert_allclose(frame["advantage"], expected(chains, config, scores, iteration), **CLOSE)


@EVERY
@pytest.mark.parametrize("seed", range(2))
def test_files_give_the_same(tmp_path: Path, estimator: str, seed: int) -> None:
    chains, config = random_chains(seed, longest=12, faults=True), random_method(seed, (estimator,), whole=True)
    rollouts, episodes = frames(chains)
    scores = random_scores(seed, rollouts)
    rollouts["response_ids"] = [[7] * tokens for tokens in rollouts.pop("response_tokens")]
    for file, frame in (("rollouts", rollouts), ("episodes", episodes), ("scores", scores)):
        frame.sample(frac=1.0, random_state=seed).to_parquet(tmp_path / f"{file}.parquet", row_group_size=7)
    write_advantages(tmp_path, config, tmp_path / "out.parquet", iteration=3)
    found = pq.read_table(tmp_path / "out.parquet").to_pandas().set_index("turn_id")["advantage"]
    turns = turns_compared(chains)
    assert sorted(found.index) == sorted(turns)
    np.testing.assert_allclose(found.loc[turns], expected(chains, config, scores, iteration=3), rtol=2e-6, atol=2e-6)
