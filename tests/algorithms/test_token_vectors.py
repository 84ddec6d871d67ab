"""The worked numbers of GAE and REINFORCE++ at 1e-6."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from token_chains import TokenChain, Turn, method, token_frames

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.advantages.gae import advantage_estimates
from agentbench_rl.algorithms.recurrence import reverse_recurrence
from agentbench_rl.algorithms.whitening import whiten
from agentbench_rl.config.algorithm import AlgorithmConfig

TOLERANCE = {"rtol": 0, "atol": 1e-6}
JUNK = "GAE-4 observation tokens skipped (mask 1,1,0,0,1,1; V on masked tokens is junk 9)"
LOST = "GAE-5 reward placed on a masked token is silently lost"
ROWS = "GAE-6 verl-agent style turn rows gamma=lam=1 (row0 success, row1 failure, last token of row1 is padding)"
CUT = "GAE-8 turn-level truncated episode bootstrapped with V(s_T)=6"
BI_LEVEL = "GAE-9 bi-level (gamma=lam=1, gamma_turn=0.95; turn ends at 4 and 9)"
BASELINE = "RF++-4 baseline variant: subtract group mean, then whiten over the whole batch (1 token per row)"
WEIGHTED = "RF++-5 baseline whitening is token-weighted (row lengths 1 and 3)"
CARRIED = "RF++-6 interior observation tokens: new code carries the return across, old code resets it"


def credited(chains: list[TokenChain], config: AlgorithmConfig) -> tuple[list[float], list[float]]:
    """Advantages of all tokens, and value targets."""
    frame, _ = compute_advantages(*token_frames(chains)[:2], config, token_frames(chains)[2])
    lengths = [len(turn.values) for episode in chains for turn in episode.turns]
    if "advantage" in frame:
        by_token = np.repeat(frame["advantage"], lengths).tolist()
    else:
        by_token = [value for row in frame["token_advantages"] for value in row]
    return by_token, [value for row in frame.get("value_targets", []) for value in row]


def kept(rows: Sequence[Sequence[float]], mask: Sequence[Sequence[int]]) -> list[float]:
    return [value for row, keep in zip(rows, mask, strict=True) for value, on in zip(row, keep, strict=True) if on]


@pytest.mark.parametrize("granularity", ["row", "token", "bi_level"])
@pytest.mark.parametrize(
    ("name", "gamma", "lam"),
    [("GAE-1 gamma=lam=1", 1.0, 1.0), ("GAE-2 gamma=0.99 lam=0.95", 0.99, 0.95), ("GAE-3 lam=0 (TD)", 0.99, 0.0)],
)
def test_one_response(vectors: dict[str, Any], name: str, gamma: float, lam: float, granularity: str) -> None:
    vector = vectors[name]
    chains = [TokenChain("g", [Turn(vector["r"][0][-1], vector["V"][0])])]
    settings = {"granularity": granularity, "gamma": gamma, "lam": lam}
    raw, targets = credited(chains, method("gae", whiten=False, **settings))
    np.testing.assert_allclose(raw, vector["A_raw"][0], **TOLERANCE)
    np.testing.assert_allclose(targets, vector["returns"][0], **TOLERANCE)
    if "A_whitened" in vector:
        whitened, unchanged = credited(chains, method("gae", **settings))
        np.testing.assert_allclose(whitened, vector["A_whitened"][0], **TOLERANCE)
        assert unchanged == targets


def test_observation_tokens_are_no_part_of_an_episode(vectors: dict[str, Any]) -> None:
    vector = vectors[JUNK]
    values = vector["V"][0]
    chains = [TokenChain("g", [Turn(0.0, values[:2]), Turn(1.0, values[4:])])]
    raw, _ = credited(chains, method("gae", gamma=0.9, lam=0.8, whiten=False))
    np.testing.assert_allclose(raw, vector["A_valid"], **TOLERANCE)
    np.testing.assert_allclose(raw, vector["equals_compacted_sequence"][0], **TOLERANCE)


def test_a_reward_between_two_responses_is_not_lost(vectors: dict[str, Any]) -> None:
    values = vectors[JUNK]["V"][0]
    without_reward, _ = credited(
        [TokenChain("g", [Turn(0.0, values[:2]), Turn(0.0, values[4:])])],
        method("gae", gamma=0.9, lam=0.8, whiten=False),
    )
    np.testing.assert_allclose(without_reward, vectors[LOST]["A_valid"], **TOLERANCE)
    rewarded, _ = credited(
        [TokenChain("g", [Turn(1.0, values[:2]), Turn(0.0, values[4:])])],
        method("gae", gamma=0.9, lam=0.8, whiten=False),
    )
    np.testing.assert_allclose(np.subtract(rewarded, without_reward), [0.72, 1.0, 0.0, 0.0], **TOLERANCE)


def test_rows_of_turns(vectors: dict[str, Any]) -> None:
    vector = vectors[ROWS]
    won, lost = (
        [value for value, on in zip(*rows, strict=True) if on] for rows in zip(vector["V"], vector["mask"], strict=True)
    )
    chains = [TokenChain("g", [Turn(1.0, won)]), TokenChain("g", [Turn(0.0, lost)])]
    raw, targets = credited(chains, method("gae", granularity="row", scale=10.0, whiten=False))
    np.testing.assert_allclose(raw, kept(vector["A_raw"], vector["mask"]), **TOLERANCE)
    np.testing.assert_allclose(targets, kept(vector["returns"], vector["mask"]), **TOLERANCE)
    whitened, _ = credited(chains, method("gae", granularity="row", scale=10.0))
    np.testing.assert_allclose(whitened, list(chain.from_iterable(vector["A_whitened_valid"])), **TOLERANCE)


def test_turns(vectors: dict[str, Any]) -> None:
    vector = vectors["GAE-7 turn-level, 3 turns gamma=0.99 lam=0.9"]
    turns = [Turn(reward, [value]) for reward, value in zip(vector["r"], vector["V_turn"], strict=True)]
    config = method("gae", granularity="turn", gamma=0.99, lam=0.9, whiten=False)
    raw, targets = credited([TokenChain("g", turns)], config)
    np.testing.assert_allclose(raw, vector["A"], **TOLERANCE)
    np.testing.assert_allclose(targets, vector["returns"], **TOLERANCE)


@pytest.mark.parametrize("ending", ["truncated_turns", "truncated_tokens"])
@pytest.mark.parametrize("granularity", ["turn", "token"])
def test_an_episode_cut_at_a_limit_goes_on_with_its_last_value(
    vectors: dict[str, Any], granularity: str, ending: str
) -> None:
    vector = vectors[CUT]
    turns = [Turn(reward, [value]) for reward, value in zip(vector["r"], vector["V_turn"], strict=True)]
    settings = {"granularity": granularity, "gamma": 0.99, "lam": 0.9, "whiten": False}
    cut = [TokenChain("g", turns, ending, vector["V_next"])]
    raw, _ = credited(cut, method("gae", truncation="bootstrap", **settings))
    np.testing.assert_allclose(raw, vector["A"], **TOLERANCE)
    terminal, _ = credited(cut, method("gae", **settings))
    assert (
        terminal == credited([TokenChain("g", turns, "failure")], method("gae", truncation="bootstrap", **settings))[0]
    )


def test_turns_and_the_tokens_inside_them(vectors: dict[str, Any]) -> None:
    values = [round(0.1 * place, 1) for place in range(1, 11)]
    chains = [TokenChain("g", [Turn(1.0, values[:5]), Turn(1.0, values[5:])])]
    raw, targets = credited(chains, method("gae", granularity="bi_level", turn_gamma=0.95, whiten=False))
    np.testing.assert_allclose(raw, vectors[BI_LEVEL]["A_raw"], **TOLERANCE)
    np.testing.assert_allclose(targets, vectors[BI_LEVEL]["returns"], **TOLERANCE)


@pytest.mark.parametrize("granularity", ["row", "token"])
@pytest.mark.parametrize(("name", "gamma"), [("RF++-1 two rows gamma=1", 1.0), ("RF++-2 gamma=0.9", 0.9)])
def test_reinforcepp(vectors: dict[str, Any], name: str, gamma: float, granularity: str) -> None:
    vector = vectors[name]
    chains = [TokenChain("g", [Turn(1.0, [0.0] * 3)]), TokenChain("g", [Turn(0.0, [0.0] * 2)])]
    found, targets = credited(chains, method("reinforcepp", granularity=granularity, gamma=gamma))
    np.testing.assert_allclose(found, kept(vector["A"], vector["mask"]), **TOLERANCE)
    assert targets == []
    rewards = np.array(kept(vector["r"], vector["mask"]))
    returns = reverse_recurrence(rewards, np.array([3, 2]), gamma)
    np.testing.assert_allclose(returns, kept(vector["returns"], vector["mask"]), **TOLERANCE)


@pytest.mark.parametrize("granularity", ["row", "token"])
def test_kl_in_the_reward(vectors: dict[str, Any], granularity: str) -> None:
    vector = vectors["RF++-3 KL in reward (k1, beta=0.1)"]
    (won, lost), (won_reference, lost_reference) = vector["logp"], vector["ref"]
    chains = [
        TokenChain("g", [Turn(1.0, [0.0] * 3, old=won, reference=won_reference)]),
        TokenChain("g", [Turn(0.0, [0.0] * 2, old=lost[:2], reference=lost_reference[:2])]),
    ]
    found, _ = credited(chains, method("reinforcepp", kl=0.1, granularity=granularity))
    np.testing.assert_allclose(found, [*vector["A"][0], *vector["A"][1][:2]], **TOLERANCE)


def test_reinforcepp_baseline(vectors: dict[str, Any]) -> None:
    vector = vectors[BASELINE]
    chains = [TokenChain(group, [Turn(reward, [0.0])]) for group, reward in zip(vector["g"], vector["R"], strict=True)]
    found, _ = credited(chains, method("reinforcepp_baseline"))
    np.testing.assert_allclose(found, vector["A"], **TOLERANCE)
    np.testing.assert_allclose(whiten(np.array(vector["centred"]), np.ones(8)), vector["A"], **TOLERANCE)


def test_whitening_counts_tokens(vectors: dict[str, Any]) -> None:
    vector = vectors[WEIGHTED]
    chains = [TokenChain("g", [Turn(1.0, [0.0])]), TokenChain("g", [Turn(0.0, [0.0] * 3)])]
    found, _ = credited(chains, method("reinforcepp_baseline", scale=10.0))
    np.testing.assert_allclose(found, [vector["A"][0][0], *vector["A"][1]], **TOLERANCE)
    by_row = whiten(np.array(vector["centred"]), np.array([1, 3]))
    np.testing.assert_allclose(by_row, [row[0] for row in vector["A"]], **TOLERANCE)


def test_returns_are_carried_across_observations(vectors: dict[str, Any]) -> None:
    vector = vectors[CARRIED]
    returns = reverse_recurrence(np.array([0.0, 1.0]), np.array([2]), 1.0)
    np.testing.assert_allclose(returns, kept(vector["returns_new"], vector["mask"]), **TOLERANCE)
    chains = [TokenChain("g", [Turn(0.0, [0.0]), Turn(1.0, [0.0])]), TokenChain("g", [Turn(0.0, [0.0])])]
    found, _ = credited(chains, method("reinforcepp"))
    assert found[0] == found[1] > found[2]


def test_the_kernel_takes_sequences_one_after_another() -> None:
    rewards, values = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.25, 2.0])
    found = advantage_estimates(rewards, values, np.array([2, 1]), np.array([0.0, 4.0]), gamma=0.5, lam=0.5)
    np.testing.assert_allclose(found, [0.125 - 0.5 + 0.25 * 0.75, 0.75, 5.0 + 2.0 - 2.0])
