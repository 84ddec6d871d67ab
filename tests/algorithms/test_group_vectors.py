"""The worked numbers of HGPO, Tree-GRPO, EMPG, overlong penalties and ARPO at 1e-6, and those of other stds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.branching import branch_probability
from agentbench_rl.algorithms.kernels import group_advantage
from agentbench_rl.config.algorithm import AlgorithmConfig

TOLERANCE = {"rtol": 0, "atol": 1e-6}


def advantages(chains: list[Chain], config: AlgorithmConfig, scores: pd.DataFrame | None = None) -> np.ndarray:
    return compute_advantages(*frames(chains), config, scores)[0]["advantage"].to_numpy()


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("A_mean_norm", {"normalisation": "mean"}),
        ("A_mean_std_norm", {"normalisation": "mean_std"}),
        ("A_K0_mean_norm", {"normalisation": "mean", "history": 0}),
    ],
)
def test_hgpo(vectors: dict[str, Any], key: str, settings: dict[str, object]) -> None:
    vector = vectors["HGPO-1 K=2, 3 trajectories, alpha=1"]
    chains = [
        Chain("x", [0.0, 0.0, final[-1]], obs) for obs, final in zip(vector["obs"], vector["returns"], strict=True)
    ]
    found = advantages(chains, algorithm("hgpo", **settings))
    np.testing.assert_allclose(found, np.concatenate(vector[key]), **TOLERANCE)


@pytest.mark.parametrize(
    ("key", "levels"), [("A_paper_sum", "both"), ("A_intra", "intra"), ("A_released_code", "intra")]
)
def test_tree_zscore(vectors: dict[str, Any], key: str, levels: str) -> None:
    vector = vectors["TreeGRPO-1 two trees of three leaves"]
    chains = [Chain("g", [reward], tree=tree) for reward, tree in zip(vector["R"], vector["tree"], strict=True)]
    np.testing.assert_allclose(advantages(chains, algorithm("tree_zscore", levels=levels)), vector[key], **TOLERANCE)


def test_empg(vectors: dict[str, Any]) -> None:
    vector = vectors["EMPG-1 k=kf=1 zeta=0.05, two 3-step trajectories"]
    chains = [Chain("g", [0.0, 0.0, 1.0]), Chain("g", [0.0, 0.0, -1.0])]
    turns = frames(chains)[0]["turn_id"]
    scores = pd.DataFrame({"turn_id": turns, "entropies": [[entropy] for entropy in vector["H"]]})
    plain = algorithm("group_mean")
    np.testing.assert_allclose(advantages(chains, plain), vector["A_traj"], **TOLERANCE)
    modified = algorithm("group_mean", parts={"modifiers": [{"kind": "empg"}]})
    np.testing.assert_allclose(advantages(chains, modified, scores), vector["A_final"], **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "most", "cache"),
    [
        ("DAPO-2 soft overlong punishment Lmax=20480 cache=4096", 20480, 4096),
        ("DAPO-2b agent setting Lmax=512 cache=128 factor=1", 512, 128),
    ],
)
def test_overlong_penalties(vectors: dict[str, Any], name: str, most: int, cache: int) -> None:
    vector = vectors[name]
    chains = [Chain(f"g{number}", [0.0], tokens=[tokens]) for number, tokens in enumerate(vector["lengths"])]
    overlong = {"overlong": {"max_tokens": most, "cache_tokens": cache, "factor": 1.0}}
    found = advantages(chains, algorithm("group_mean", parts={"reward": overlong}, singleton="raw"))
    np.testing.assert_allclose(found, vector["penalty"], **TOLERANCE)


def test_branch_probabilities(vectors: dict[str, Any]) -> None:
    vector = vectors["ARPO-1 branch probability clip(0.5+0.2*dH,0,1)"]
    np.testing.assert_allclose(branch_probability(np.array(vector["dH"])), vector["p"], **TOLERANCE)


def test_population_std(vectors: dict[str, Any]) -> None:
    expected = vectors["GRPO-8 alternatives on [10,0,0,10]"]["population_std"]
    values, together = np.array([10.0, 0.0, 0.0, 10.0]), np.zeros(4, dtype=np.int64)
    everyone = np.ones(4, dtype=bool)
    found = group_advantage(values, together, everyone, singleton="zero", epsilon=1e-6, population=True)
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    chains = [Chain("g", [value], ["s"]) for value in values]
    for by_hgpo in (algorithm("hgpo"), algorithm("hgpo", base=True)):
        np.testing.assert_allclose(advantages(chains, by_hgpo), expected, **TOLERANCE)
