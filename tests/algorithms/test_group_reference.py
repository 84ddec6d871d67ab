"""Every group-level method equals the specification in plain loops, in memory and through files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, frames
from group_reference import slow_advantages
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import ESTIMATORS, random_chains, random_method, random_scores, turns_compared

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig

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
@settings(max_examples=15, deadline=None)
def test_random_rollouts(estimator: str, seed: int) -> None:
    chains = random_chains(seed, longest=50, faults=True)
    config, iteration = random_method(seed + 1, (estimator,), whole=True), seed % 6
    rollouts, episodes = frames(chains)
    scores = random_scores(seed, rollouts)
    frame, _ = compute_advantages(rollouts, episodes, config, scores, iteration)
    assert frame["turn_id"].tolist() == turns_compared(chains)
    if len(frame):
        np.testing.assert_allclose(frame["advantage"], expected(chains, config, scores, iteration), **CLOSE)
