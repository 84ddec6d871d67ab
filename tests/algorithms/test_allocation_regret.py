"""3SPO's theory on bandits, by the scores, the table and the allocation that training uses."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.allocation_regret import ARMS, Allocation, exponent, fits, search_settings, simulate

FIRST, GAP = 50, ARMS[1] - ARMS[0]


@pytest.fixture(scope="module", params=["visits", "iteration"])
def marginal(request: pytest.FixtureRequest) -> Allocation:
    """alpha times the smallest gap is 1: exact statistics would give shares of 1/t, and a regret of log I."""
    return simulate(search_settings(1.0, request.param), rounds=2000, runs=6)


def test_the_regret_grows_like_the_logarithm_of_the_rounds(marginal: Allocation) -> None:
    late = marginal.after(FIRST)
    quality = fits(late.rounds, late.regret)
    assert quality["log I"] > 0.97
    assert quality["log I"] > quality["sqrt I"] + 0.03 > quality["I"] + 0.06


def test_shares_of_mastered_arms_decay_at_least_as_fast_as_claimed(marginal: Allocation) -> None:
    late = marginal.after(FIRST)
    decay = [exponent(late.rounds, share) for share in late.shares.T[1:]]
    assert all(found < -(arm - ARMS[0]) / GAP / 2 for found, arm in zip(decay, ARMS[1:], strict=True))
    assert decay[0] == pytest.approx(-1.0, abs=0.35)


def test_where_the_claim_holds_with_room_the_regret_is_bounded_and_mastered_arms_are_no_longer_trained_on() -> None:
    allocation = simulate(search_settings(2.0, "visits"), rounds=1000, runs=4)
    late = allocation.after(FIRST)
    assert late.regret[-1] < 1.1 * late.regret[0]
    assert allocation.trained[-1].max() < 30


def test_without_a_response_to_every_visited_state_the_regret_is_linear() -> None:
    allocation = simulate(search_settings(2.0, "iteration"), rounds=2000, runs=8, floor=False).after(FIRST)
    assert fits(allocation.rounds, allocation.regret)["I"] > 0.99
    assert allocation.regret[-1] > 100


def test_shapes_of_growth_are_told_apart() -> None:
    rounds = np.geomspace(50, 5000, 30)
    for name, regret in {"log I": 3 * np.log(rounds), "sqrt I": np.sqrt(rounds), "I": 0.1 * rounds}.items():
        quality = fits(rounds, regret)
        assert max(quality, key=quality.__getitem__) == name
        assert quality[name] == pytest.approx(1.0)
    assert exponent(rounds, 5 * rounds**-1.5) == pytest.approx(-1.5)
