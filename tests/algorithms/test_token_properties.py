"""What holds of GAE, REINFORCE++ and whitening on any rollouts, and the traps of credit per token."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_chains import TokenChain, Turn, method, random_chains, token_frames

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.advantages.gae import advantage_estimates
from agentbench_rl.algorithms.recurrence import reverse_recurrence
from agentbench_rl.algorithms.whitening import segment_moments, whiten
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.stages.advantage import write_advantages
from agentbench_rl.types import AgentRLError

properties = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
CLOSE = {"rtol": 0, "atol": 2e-6}


def credits(chains: list[TokenChain], config: AlgorithmConfig) -> np.ndarray:
    """Advantages of all tokens."""
    rollouts, episodes, scores = token_frames(chains)
    return by_token(compute_advantages(rollouts, episodes, config, scores)[0], rollouts)


def by_token(frame: pd.DataFrame, rollouts: pd.DataFrame) -> np.ndarray:
    if "token_advantages" in frame:
        return np.array([value for row in frame["token_advantages"] for value in row])
    kept = rollouts[rollouts["turn_id"].isin(set(frame["turn_id"]))]
    return np.repeat(frame["advantage"].to_numpy(), kept["response_ids"].map(len))


def healthy(chains: list[TokenChain]) -> list[TokenChain]:
    return [chain for chain in chains if chain.ending != "env_error"]


def with_tokens(chains: list[TokenChain], tokens: int) -> list[TokenChain]:
    """The same episodes, every response of which has so many tokens of equal value."""
    return [
        TokenChain(
            c.group, [Turn(t.reward, [(t.values or [0.5])[0]] * tokens) for t in c.turns], c.ending, c.final_value
        )
        for c in chains
    ]


@given(SEEDS)
@properties
def test_lambda_1_is_the_return_minus_the_value_and_lambda_0_one_step(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, 5)
    rewards, values = generator.normal(size=(2, lengths.sum()))
    nothing, ends = np.zeros(5), np.cumsum(lengths) - 1
    full = advantage_estimates(rewards, values, lengths, nothing, gamma=0.9, lam=1.0)
    np.testing.assert_allclose(full, reverse_recurrence(rewards, lengths, 0.9) - values, atol=1e-12)
    step = advantage_estimates(rewards, values, lengths, nothing, gamma=0.9, lam=0.0)
    following = np.append(values[1:], 0.0)
    following[ends] = 0.0
    np.testing.assert_allclose(step, rewards + 0.9 * following - values, atol=1e-12)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.sampled_from([0.0, 0.5, 1.0]), SEEDS)
@properties
def test_the_recurrence_of_a_segment_is_that_of_the_segment_alone(lengths: list[int], factor: float, seed: int) -> None:
    items = np.random.default_rng(seed).normal(size=sum(lengths))
    found = np.split(reverse_recurrence(items, np.array(lengths), factor), np.cumsum(lengths)[:-1])
    for segment, whole in zip(np.split(items, np.cumsum(lengths)[:-1]), found, strict=True):
        carried, expected = 0.0, []
        for item in segment[::-1]:
            carried = item + factor * carried
            expected.insert(0, carried)
        assert whole.tolist() == expected


@given(SEEDS, st.sampled_from([0.9, 1.0]), st.sampled_from([0.8, 1.0]), st.booleans())
@properties
def test_turns_of_one_token_are_tokens(seed: int, gamma: float, lam: float, whitened: bool) -> None:
    two_turns = TokenChain("g0", [Turn(0.0, [0.25]), Turn(1.0, [0.5])])
    chains = with_tokens([two_turns, *random_chains(seed, longest=8)], 1)
    common = {"gamma": gamma, "lam": lam, "whiten": whitened, "truncation": "bootstrap"}
    token = credits(chains, method("gae", granularity="token", **common))
    turn = credits(chains, method("gae", granularity="turn", **common))
    np.testing.assert_allclose(turn, token, **CLOSE)


@given(SEEDS, st.sampled_from([0.0, 0.1]), st.sampled_from(["terminal", "bootstrap"]))
@properties
def test_two_levels_without_discount_are_one(seed: int, kl: float, truncation: str) -> None:
    chains = random_chains(seed, longest=8)
    common = {"kl": kl, "penalty": 0.1, "turn_gamma": 1.0, "whiten": False, "truncation": truncation}
    token = credits(chains, method("gae", granularity="token", **common))
    both = credits(chains, method("gae", granularity="bi_level", **common))
    np.testing.assert_allclose(both, token, rtol=0, atol=1e-5)


@given(SEEDS, st.sampled_from(["token", "turn", "bi_level"]))
@properties
def test_an_empty_response_changes_no_credit_of_the_others(seed: int, granularity: str) -> None:
    chains = [c for c in random_chains(seed, longest=8) if any(turn.values for turn in c.turns)]
    chains = [c for c in chains if c.turns[0].values]
    padded = [
        TokenChain(c.group, [t for turn in c.turns for t in (turn, Turn(0.0, []))], c.ending, c.final_value)
        for c in chains
    ]
    config = method("gae", granularity=granularity, gamma=0.9, lam=0.8)
    assert credits(padded, config).tolist() == credits(chains, config).tolist()


@given(SEEDS, st.sampled_from(["row", "token", "bi_level"]), st.sampled_from([0.0, 100.0]))
@properties
def test_whitened_advantages_have_mean_0_and_variance_1(seed: int, granularity: str, offset: float) -> None:
    chains = random_chains(seed)
    for turn in (turn for chain in chains for turn in chain.turns):
        turn.values = [value + offset for value in turn.values]
    raw = credits(chains, method("gae", granularity=granularity, whiten=False))
    found = credits(chains, method("gae", granularity=granularity))
    assert found.mean() == pytest.approx(0.0, abs=1e-5)
    if raw.std() > 1e-3:
        assert found.std(ddof=1) == pytest.approx(1.0, abs=1e-3)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=20), st.randoms(use_true_random=False))
@properties
def test_whitening_by_weight_is_that_of_the_repeated_values(values: list[float], generator) -> None:
    weights = [generator.randint(0, 4) for _ in values[1:]] + [2]
    repeated = np.repeat(values, weights)
    found = whiten(np.array(values), np.array(weights))
    scale = np.sqrt(repeated.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(np.repeat(found, weights), (repeated - repeated.mean()) / scale, atol=1e-6)
    assert (found[np.array(weights) == 0] == 0.0).all()


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3, 1e6])
def test_equal_values_are_worth_exactly_nothing(constant: float) -> None:
    assert whiten(np.full(7, constant), np.arange(7)).tolist() == [0.0] * 7
    _, std = segment_moments(np.full(10, constant), np.array([3, 7])).pooled()
    assert std == np.inf
    chains = [TokenChain("g", [Turn(0.3, [0.0] * n)]) for n in (1, 2, 3)]
    for estimator in ("reinforcepp", "gae", "reinforcepp_baseline"):
        assert credits(chains, method(estimator)).tolist() == [0.0] * 6


@pytest.mark.parametrize("estimator", ["reinforcepp", "gae"])
def test_a_single_token_cannot_be_whitened(estimator: str) -> None:
    with pytest.raises(AgentRLError, match="at least two response tokens; the batch has 1"):
        credits([TokenChain("g", [Turn(1.0, [0.5])])], method(estimator))


@given(SEEDS, st.sampled_from([0.5, 3.0]))
@properties
def test_shifting_a_group_changes_no_reinforcepp_baseline(seed: int, shift: float) -> None:
    rollouts, episodes, _ = token_frames(random_chains(seed, longest=8))
    config = method("reinforcepp_baseline", penalty=0.1)
    rows = rollouts.set_index("turn_id")["group_id"]
    in_group = episodes["leaf_turn_id"].map(rows) == "g0"
    moved = episodes.assign(**{"return": episodes["return"] + shift * in_group})
    expected, _ = compute_advantages(rollouts, episodes, config)
    found, _ = compute_advantages(rollouts, moved, config)
    np.testing.assert_allclose(found["advantage"], expected["advantage"], atol=1e-6)


def test_a_group_of_one_stays_out_of_the_whitening_and_counts() -> None:
    pair = [TokenChain("g", [Turn(reward, [0.0] * 2)]) for reward in (1.0, 0.0)]
    alone = TokenChain("h", [Turn(9.0, [0.0] * 5)])
    config = method("reinforcepp_baseline")
    assert credits([*pair, alone], config).tolist() == [*credits(pair, config).tolist(), *[0.0] * 5]
    _, diagnostics = compute_advantages(*token_frames([*pair, alone])[:2], config)
    assert diagnostics["singleton_groups"] == 1.0


def test_trap_7_rows_have_no_credit_across_turns() -> None:
    chain = TokenChain("g", [Turn(0.0, [0.0, 0.0]), Turn(1.0, [0.5])])
    changed = TokenChain("g", [Turn(0.0, [0.0, 0.0]), Turn(1.0, [0.9])])
    row = {"granularity": "row", "whiten": False, "gamma": 0.5, "lam": 0.5}
    np.testing.assert_allclose(credits([chain], method("gae", **row)), [0.25 * 1.0, 1.0, 0.5])
    assert credits([changed], method("gae", **row))[:2].tolist() == credits([chain], method("gae", **row))[:2].tolist()
    token = method("gae", granularity="token", whiten=False, gamma=0.5, lam=0.5)
    assert credits([changed], token)[0] != credits([chain], token)[0]


def test_trap_11_the_reward_of_an_empty_response_stands_on_the_token_before_it() -> None:
    chain = TokenChain("g", [Turn(0.0, [0.0, 0.0]), Turn(1.0, [], valid=False), Turn(0.0, [0.0])])
    for granularity, expected in (("token", [0.9, 0.9, 0.0]), ("turn", [0.9, 0.9, 0.0]), ("bi_level", [0.9, 0.9, 0.0])):
        config = method("gae", granularity=granularity, penalty=0.1, whiten=False)
        np.testing.assert_allclose(credits([chain], config), expected, **CLOSE)
    rows = method("gae", granularity="row", penalty=0.1, whiten=False)
    np.testing.assert_allclose(credits([chain], rows), [1.0, 1.0, 1.0], **CLOSE)


def test_trap_11_a_reward_before_the_first_token_is_counted() -> None:
    chain = TokenChain("g", [Turn(1.0, []), Turn(0.0, [0.0, 0.0])])
    rollouts, episodes, scores = token_frames([chain])
    frame, diagnostics = compute_advantages(rollouts, episodes, method("gae", whiten=False), scores)
    assert [list(row) for row in frame["token_advantages"]] == [[], [0.0, 0.0]]
    assert (diagnostics["uncredited_rewards"], diagnostics["empty_responses"]) == (1.0, 1.0)


def test_a_batch_of_empty_responses_is_worth_nothing() -> None:
    chains = [TokenChain("g", [Turn(1.0, []), Turn(0.0, [])])]
    for config in (method("gae"), method("gae", granularity="turn"), method("reinforcepp")):
        rollouts, episodes, scores = token_frames(chains)
        frame, diagnostics = compute_advantages(rollouts, episodes, config, scores)
        assert by_token(frame, rollouts).tolist() == []
        assert diagnostics["uncredited_rewards"] == 1.0


def unfolded(values: list[list[float]]) -> tuple[list[TokenChain], tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    """Two chains with the same first turn, and the tree in which they share it (row 2, and nothing else, is gone)."""
    shared, left, right = values
    first, second = Turn(0.25, shared), Turn(0.25, shared)
    chains = [TokenChain("g", [first, Turn(1.0, left)]), TokenChain("g", [second, Turn(0.0, right)])]
    rollouts, episodes, scores = token_frames(chains)
    tree = rollouts.drop(2).reset_index(drop=True).assign(tree_id="0", branch=[0, 0, 1])
    tree.loc[2, "parent_id"] = "0/0"
    return chains, (tree, episodes, scores.drop(2).reset_index(drop=True))


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("granularity", ["row", "token", "turn", "bi_level"])
def test_a_shared_turn_gets_the_mean_of_its_credits(granularity: str, whitened: bool) -> None:
    chains, (tree, episodes, scores) = unfolded([[0.5, 0.25], [0.125], [0.75, 0.5, 0.0]])
    config = method("gae", granularity=granularity, gamma=0.9, lam=0.8, whiten=whitened)
    apart = credits(chains, config)
    frame, _ = compute_advantages(tree, episodes, config, scores)
    expected = [*(apart[:2] + apart[3:5]) / 2, *apart[2:3], *apart[5:]]
    np.testing.assert_allclose(by_token(frame, tree), expected, **CLOSE)
    assert frame["loss_weight"].tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize("granularity", ["token", "turn", "bi_level"])
def test_the_members_of_an_event_act_one_after_another(granularity: str) -> None:
    chain = TokenChain("g", [Turn(0.5, [0.25, 0.5]), Turn(0.0, [0.75]), Turn(1.0, [0.125])])
    rollouts, episodes, scores = token_frames([chain])
    rollouts = rollouts.assign(event_id=["e", "e", "f"], member=[0, 1, 0], reward=[0.5, 9.0, 1.0])
    rollouts["parent_id"] = [None, None, "0/0"]
    config = method("gae", granularity=granularity, gamma=0.9, lam=0.8, whiten=False, turn_gamma=0.9)
    frame, _ = compute_advantages(rollouts, episodes, config, scores)
    late = TokenChain("g", [Turn(0.0, [0.25, 0.5]), Turn(0.5, [0.75]), Turn(1.0, [0.125])])
    np.testing.assert_allclose(by_token(frame, rollouts), credits([late], config), **CLOSE)


def broken(change: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame | None, str]:
    rollouts, episodes, scores = token_frames([TokenChain("g", [Turn(0.0, [0.5, 0.25]), Turn(1.0, [0.5])])])
    match change:
        case "no scores":
            return rollouts, episodes, None, r"needs critic values \(scores.parquet, column values\)"
        case "no values":
            return rollouts, episodes, scores.drop(columns="values"), "needs critic values"
        case "a turn is missing":
            return rollouts, episodes, scores.iloc[:1], "turn '0/1' is missing"
        case "an unknown turn":
            return rollouts, episodes, pd.concat([scores, scores.tail(1).assign(turn_id="x")]), "'x' is not in the"
        case "a turn twice":
            return rollouts, episodes, pd.concat([scores, scores.tail(1)]), "turn_id '0/1' stands in more than one row"
        case "another length":
            scores.at[1, "values"] = [0.5, 0.5]
            return rollouts, episodes, scores, "values of turn '0/1': 2 values for 1 response tokens"
        case "not a number":
            scores.at[0, "values"] = [0.5, np.nan]
            return rollouts, episodes, scores, "values of turn '0/0': a value is null or not finite"
        case "null list":
            scores.at[1, "values"] = None
            return rollouts, episodes, scores, "values of turn '0/1': 0 values for 1 response tokens"
    raise AssertionError(change)


CHANGES = (
    "no scores", "no values", "a turn is missing", "an unknown turn", "a turn twice", "another length", "not a number",
    "null list",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("granularity", ["row", "turn"])
def test_broken_scores_are_explained(change: str, granularity: str) -> None:
    rollouts, episodes, scores, message = broken(change)
    with pytest.raises(AgentRLError, match=message):
        compute_advantages(rollouts, episodes, method("gae", granularity=granularity), scores)


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "no scores"])
def test_broken_score_files_are_explained(tmp_path: Path, change: str) -> None:
    rollouts, episodes, scores, message = broken(change)
    assert scores is not None
    for file, frame in (("rollouts", rollouts), ("episodes", episodes), ("scores", scores)):
        frame.to_parquet(tmp_path / f"{file}.parquet")
    with pytest.raises(AgentRLError, match=message):
        write_advantages(tmp_path, method("gae"), tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_missing_log_probs_and_last_values_are_explained(tmp_path: Path) -> None:
    rollouts, episodes, scores = token_frames([TokenChain("g", [Turn(1.0, [0.5, 0.25])], "truncated_turns")])
    with pytest.raises(AgentRLError, match=r"log-probs of scores.parquet, column old_logprobs"):
        compute_advantages(rollouts, episodes, method("reinforcepp", kl=0.1))
    bootstrap = method("gae", truncation="bootstrap")
    for known in (scores, scores.drop(columns="final_value")):
        with pytest.raises(AgentRLError, match="that turn '0/0' led to"):
            compute_advantages(rollouts, episodes, bootstrap, known)
    with pytest.raises(ValueError, match="needs credit across turns"):
        method("gae", granularity="row", truncation="bootstrap")
    for file, frame in (("rollouts", rollouts), ("episodes", episodes)):
        frame.to_parquet(tmp_path / f"{file}.parquet")
    with pytest.raises(AgentRLError, match="needs critic values"):
        write_advantages(tmp_path, method("gae"), tmp_path / "out.parquet")
    with pytest.raises(AgentRLError, match="no such file"):
        write_advantages(tmp_path, method("gae"), tmp_path / "out.parquet", scores=tmp_path / "elsewhere.parquet")


def test_twenty_thousand_turns_are_scored_without_their_tokens(tmp_path: Path) -> None:
    chains = [TokenChain(f"g{n // 8}", [Turn(float(n % 3 == 0), [0.0])] * 10) for n in range(2000)]
    rollouts, episodes, _ = token_frames(chains)
    unreadable = pa.array([["not", "tokens"]] * len(rollouts))
    table = pa.Table.from_pandas(rollouts.drop(columns="response_ids"), preserve_index=False)
    pq.write_table(table.append_column("response_ids", unreadable), tmp_path / "rollouts.parquet")
    episodes.to_parquet(tmp_path / "episodes.parquet")
    started = time.process_time()
    write_advantages(tmp_path, method("group_zscore"), tmp_path / "out.parquet")
    assert time.process_time() - started < 2.0, "a coarse bound, in processor time: the machine may be busy"
    frame, _ = compute_advantages(rollouts.drop(columns="response_ids"), episodes, method("group_zscore"))
    found = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert found["turn_id"].tolist() == frame["turn_id"].tolist()
    np.testing.assert_array_equal(found["advantage"], frame["advantage"].astype("float32"))
    assert found["token_advantages"].isna().all()


def test_lists_of_other_widths_are_read(tmp_path: Path) -> None:
    rollouts, episodes, scores = token_frames([TokenChain("g", [Turn(0.0, [0.5, 0.25]), Turn(1.0, [0.5])])])
    rollouts.to_parquet(tmp_path / "rollouts.parquet")
    episodes.to_parquet(tmp_path / "episodes.parquet")
    wide = pa.table({"turn_id": scores["turn_id"], "values": pa.array(scores["values"], pa.large_list(pa.float64()))})
    pq.write_table(wide, tmp_path / "scores.parquet")
    write_advantages(tmp_path, method("gae"), tmp_path / "out.parquet")
    expected, _ = compute_advantages(rollouts, episodes, method("gae"), scores)
    found = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert [list(row) for row in found["token_advantages"]] == [list(row) for row in expected["token_advantages"]]
    pq.write_table(wide.set_column(1, "values", [["a", "b"]]), tmp_path / "scores.parquet")
    with pytest.raises(AgentRLError, match="column 'values' must hold lists"):
        write_advantages(tmp_path, method("gae"), tmp_path / "out.parquet")
