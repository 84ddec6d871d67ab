"""Trees on coins, from topology to gradient: unbiased or not, and how noisy; `tests/extras` plays more of them."""

from __future__ import annotations

from tree_statistics import check_prefix_coin, check_prefix_credit, check_selection_bias, check_three_bits

TREES = 5000


def test_weighted_trees_are_unbiased_with_less_variance_than_rloo_and_the_literal_ones_are_skewed() -> None:
    check_three_bits(TREES)


def test_siblings_share_the_noise_of_their_prefix() -> None:
    check_prefix_coin(TREES // 2)


def test_siblings_give_the_prefix_no_credit() -> None:
    check_prefix_credit(TREES // 5)


def test_points_chosen_after_the_fact_bias_the_gradient() -> None:
    check_selection_bias(TREES // 2)
