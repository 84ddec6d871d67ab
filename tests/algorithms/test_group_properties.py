"""What holds of single group-level methods, of greedy baselines and of selection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import ESTIMATORS, chains

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError

properties = settings(max_examples=12, deadline=None)


def advantages(built: list[Chain], config: AlgorithmConfig) -> np.ndarray:
    return compute_advantages(*frames(built), config)[0]["advantage"].to_numpy()


@given(chains(faults=False))
@properties
def test_hgpo_without_history_and_std_is_the_anchor_part_of_gigpo(built: list[Chain]) -> None:
    whole, episode_part = (advantages(built, algorithm("gigpo", normalisation="mean", omega=w)) for w in (1.0, 0.0))
    hgpo = advantages(built, algorithm("hgpo", normalisation="mean", history=0))
    np.testing.assert_allclose(hgpo, whole - episode_part, atol=1e-5)


@given(chains(), st.sampled_from(["mean", "mean_std"]))
@properties
def test_hgpo_ignores_what_lies_before_its_history_and_other_groups(built: list[Chain], normalisation: str) -> None:
    config = algorithm("hgpo", normalisation=normalisation, history=1)
    alike = [replace(chain, anchors=["start", *chain.anchors[1:]]) for chain in built]
    unlike = [replace(chain, anchors=[f"start {number}", *chain.anchors[1:]]) for number, chain in enumerate(built)]
    frame, _ = compute_advantages(*frames(alike), config)
    late = frame["turn_id"].str.split("/").str[1].astype(int).to_numpy() >= 2
    np.testing.assert_array_equal(advantages(unlike, config)[late], frame["advantage"][late])
    separate = [replace(chain, anchors=[f"{chain.group}|{anchor}" for anchor in chain.anchors]) for chain in alike]
    np.testing.assert_array_equal(advantages(separate, config), frame["advantage"])


@given(chains())
@properties
def test_a_group_that_is_one_tree_counts_it_twice(built: list[Chain]) -> None:
    one_tree = [replace(chain, tree=chain.group) for chain in built]
    both, intra = (advantages(one_tree, algorithm("tree_zscore", levels=levels)) for levels in ("both", "intra"))
    np.testing.assert_array_equal(both, 2 * intra)
    np.testing.assert_array_equal(intra, advantages(one_tree, algorithm("group_zscore")))


@given(chains())
@properties
def test_trees_of_one_leaf_leave_the_group_score(built: list[Chain]) -> None:
    apart = [replace(chain, tree="") for chain in built]
    np.testing.assert_array_equal(
        advantages(apart, algorithm("tree_zscore")), advantages(apart, algorithm("group_zscore"))
    )
    assert (advantages(apart, algorithm("tree_zscore", levels="intra")) == 0.0).all()


@given(chains())
@properties
def test_equal_lengths_make_opo_the_group_mean(built: list[Chain]) -> None:
    equal = [replace(chain, tokens=[6, *[0] * (len(chain.rewards) - 1)]) for chain in built]
    group_mean = advantages(equal, algorithm("group_mean"))
    np.testing.assert_allclose(advantages(equal, algorithm("opo")), group_mean, atol=1e-12)


def test_a_long_episode_moves_the_baseline_of_opo_more() -> None:
    built = [Chain("g", [1.0], tokens=[1]), Chain("g", [0.0, 0.0], tokens=[1, 2])]
    np.testing.assert_allclose(advantages(built, algorithm("opo")), [0.75, -0.25, -0.25])


def test_opo_of_empty_responses_is_no_nan() -> None:
    built = [Chain("g", [1.0], tokens=[0]), Chain("g", [0.0], tokens=[0])]
    assert np.isfinite(advantages(built, algorithm("opo"))).all()


def test_gpg_makes_up_for_groups_without_a_gradient() -> None:
    built = [Chain("g", [1.0]), Chain("g", [0.0]), Chain("h", [1.0]), Chain("h", [1.0]), Chain("alone", [1.0])]
    frame, diagnostics = compute_advantages(*frames(built), algorithm("gpg", f_norm=0.5))
    np.testing.assert_allclose(frame["advantage"], [3.0, -3.0, 0.0, 0.0, 0.0])
    assert diagnostics["gpg_alpha"] == 3.0
    assert (advantages(built[2:], algorithm("gpg")) == 0.0).all()


def test_pass_at_k_credits_the_lead_of_the_best_alone() -> None:
    built = [Chain("g", [value]) for value in (0.25, 1.0, 0.5)]
    np.testing.assert_allclose(advantages(built, algorithm("pass_at_k", divide_by_std=False)), [0.0, 0.5, 0.0])
    std = np.std([0.25, 1.0, 0.5], ddof=1) + 1e-6
    np.testing.assert_allclose(advantages(built, algorithm("pass_at_k")), [0.0, 0.5 / std, 0.0])
    tied = [*built, Chain("g", [1.0])]
    assert (advantages(tied, algorithm("pass_at_k")) == 0.0).all()


@given(chains(faults=False))
@properties
def test_gdpo_is_whitened_over_the_tokens(built: list[Chain]) -> None:
    # One component: two could cancel up to their epsilon, and the rest would be too small against the guard.
    frame, _ = compute_advantages(*frames(built), algorithm("gdpo", process_weight=0.0))
    lengths = frames(built)[0].set_index("turn_id").loc[frame["turn_id"], "response_tokens"]
    tokens = np.repeat(frame["advantage"].to_numpy(), lengths)
    assert abs(tokens.mean()) < 1e-6
    assert tokens.var(ddof=1) == pytest.approx(1.0, abs=1e-4) or (tokens == 0.0).all()


def test_mt_grpo_compares_turns_at_the_same_step_and_ends_with_the_outcome() -> None:
    built = [
        Chain("g", [0.0, 0.0, 1.0], process=[1.0, 0.5, 0.0]),
        Chain("g", [0.0, 0.0], process=[0.0, 9.0]),
        Chain("g", [0.0, 0.0, 0.0], process=[0.5, 0.0, 0.0]),
    ]
    outcome = advantages(built, algorithm("group_zscore"))
    first, second = 0.5 / (0.5 + 1e-6), np.sqrt(0.5) / (1 + 1e-6 / np.sqrt(0.125))
    turn = [first, second, 0.0, -first, 0.0, 0.0, -second, 0.0]
    last = np.array([False, False, True, False, True, False, False, True])
    found = advantages(built, algorithm("mt_grpo", outcome_weight=0.5))
    np.testing.assert_allclose(found, turn + np.where(last, 1.0, 0.5) * outcome, atol=1e-9)


@given(chains(faults=False), st.sampled_from(ESTIMATORS))
@properties
def test_a_greedy_episode_is_no_sample_of_any_method(built: list[Chain], estimator: str) -> None:
    config = algorithm(estimator) if estimator != "remax" else algorithm("group_mean")
    sampled = [chain for chain in built if not chain.greedy]
    frame, diagnostics = compute_advantages(*frames(built), config)
    alone, expected = compute_advantages(*frames(sampled), config)
    assert frame["advantage"].tolist() == alone["advantage"].tolist()
    assert diagnostics == expected


def test_remax_subtracts_the_greedy_return_and_counts_the_groups_without_one() -> None:
    built = [
        Chain("g", [0.0, 1.0], valid=[False, True]),
        Chain("g", [0.25], greedy=True),
        Chain("h", [1.0]),
        Chain("h", [1.0], ending="env_error", greedy=True),
        Chain("i", [1.0]),
    ]
    frame, diagnostics = compute_advantages(*frames(built), algorithm("remax", penalty=0.1, scale=2.0))
    np.testing.assert_allclose(frame["advantage"], [1.4, 1.5, 0.0, 0.0])
    assert frame["turn_id"].tolist() == ["0/0", "0/1", "2/0", "4/0"]
    assert diagnostics["groups_without_baseline"] == 2.0
    assert diagnostics["episodes"] == 3.0


def selected(built: list[Chain], **selection: object) -> tuple[dict[str, float], dict[str, float]]:
    rollouts, episodes = frames(built)
    rollouts["response_ids"] = [[7] * tokens for tokens in rollouts["response_tokens"]]
    config = algorithm("group_mean", parts={"selection": selection})
    frame, diagnostics = compute_advantages(rollouts, episodes, config)
    return dict(zip(frame["turn_id"], frame["advantage"], strict=True)), diagnostics


SPREAD = [
    Chain("g", [0.0, 1.0], valid=[False, True], tokens=[3, 9]),
    Chain("g", [0.0], tokens=[2]),
    Chain("h", [0.25]),
    Chain("h", [0.0]),
]


@pytest.mark.parametrize("selection", [{"drop_invalid": True}, {"drop_overlong": 9}, {"drop_repetitive": 0.5}])
def test_a_dropped_row_still_counts_in_its_group(selection: dict[str, object]) -> None:
    everything, _ = selected(SPREAD)
    kept, diagnostics = selected(SPREAD, **selection)
    dropped = "0/0" if "drop_invalid" in selection else "0/1"
    assert kept == {turn: value for turn, value in everything.items() if turn != dropped}
    assert diagnostics["unselected_rows"] == 1.0


def test_groups_that_vary_little_are_dropped_whole_and_counted() -> None:
    everything, before = selected(SPREAD)
    kept, diagnostics = selected(SPREAD, keep_groups=0.5)
    assert kept == {turn: value for turn, value in everything.items() if turn[0] in "01"}
    assert diagnostics["unselected_rows"] == 2.0
    assert diagnostics["groups"] == before["groups"] == 2.0
    assert diagnostics["return_mean"] == before["return_mean"]


def test_dropping_every_row_leaves_an_empty_file() -> None:
    kept, diagnostics = selected([Chain("g", [1.0], valid=[False])], drop_invalid=True)
    assert kept == {}
    assert diagnostics["unselected_rows"] == 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_groups_of_one_and_equal_rewards_give_exactly_nothing(estimator: str) -> None:
    alone = [Chain("g", [0.0, 1.0], ["a", "b"], process=[0.5, 0.5], tokens=[2, 2])]
    equal = [Chain("h", [1 / 3], ["a"], process=[0.1], tokens=[2]) for _ in range(3)]
    assert (advantages([*alone, *equal], algorithm(estimator)) == 0.0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, e: (r.replace({"0/0": "1/0"}), e), "more than one row"),
        (lambda r, e: (r, e.replace({"0/1": "9/9"})), "leaf_turn_id '9/9'"),
        (lambda r, e: (r.assign(parent_id=["lost", *r["parent_id"][1:]]), e), "parent_id 'lost'"),
        (lambda r, e: (r.assign(reward=np.nan), e.assign(**{"return": np.nan})), "null or not finite"),
        (lambda r, e: (r, e.assign(episode_id="same")), "episode_id 'same'"),
    ],
)
def test_bad_input_is_an_error_of_every_method(estimator: str, change, message: str) -> None:
    rollouts, episodes = frames([Chain("g", [0.0, 1.0], ["a", "b"]), Chain("g", [0.5], ["a"])])
    with pytest.raises(AgentRLError, match=message):
        compute_advantages(*change(rollouts, episodes), algorithm(estimator))


@pytest.mark.parametrize("modifiers", [[], [{"kind": "empg"}], [{"kind": "group_std_scale"}]])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_shared_prefix_is_worth_what_its_copies_would_be(estimator: str, modifiers: list[object]) -> None:
    built = [
        Chain(
            "g", [0.0, 0.0, 1.0], list("abc"), [True, False, True], process=[0.5, 0.0, 0.25], tokens=[2, 3, 1], tree="t"
        ),
        Chain("g", [0.0, 0.25], list("ab"), [True, True], process=[0.5, -0.25], tokens=[2, 1], tree="t"),
        Chain("g", [0.0, 0.0], list("ac"), [False, True], process=[0.0, 0.0], tokens=[4, 2]),
        Chain("g", [0.5], ["a"], process=[0.0], tokens=[1], greedy=True),
    ]
    copies, episodes = frames(built)
    shared = copies[copies["turn_id"] != "1/0"].replace({"parent_id": {"1/0": "0/0"}})
    by_tokens = {1: [0.5], 2: [0.25, 0.75], 3: [1.5] * 3, 4: [1.0] * 4}
    scores = pd.DataFrame(
        {"turn_id": copies["turn_id"], "entropies": [by_tokens[tokens] for tokens in copies["response_tokens"]]}
    )
    config = algorithm(estimator, penalty=0.1, parts={"modifiers": modifiers})
    expected = compute_advantages(copies, episodes, config, scores)[0].set_index("turn_id")["advantage"]
    fewer = scores[scores["turn_id"] != "1/0"]
    found = compute_advantages(shared, episodes, config, fewer)[0].set_index("turn_id")
    assert found["advantage"]["0/0"] == pytest.approx((expected["0/0"] + expected["1/0"]) / 2)
    assert found["loss_weight"].tolist() == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    rest = [turn for turn in found.index if turn != "0/0"]
    np.testing.assert_allclose(found["advantage"][rest], expected[rest], atol=1e-12)
