"""Known reproduction traps, each by its name; 7 and the rest of 11 stand in `test_token_properties`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from chain_frames import Chain, algorithm, frames
from tiny_experiment import tiny

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.algorithms.informative import informative_groups
from agentbench_rl.algorithms.losses import TrainedTokens, count_normalisers, policy_loss
from agentbench_rl.config.loss import TokenClip
from agentbench_rl.presets import load_algorithm, preset_names
from agentbench_rl.stages.panel import draw_panels
from agentbench_rl.stages.rollout import tasks_of_iteration
from agentbench_rl.training.signals import training_signals
from agentbench_rl.types import AgentRLError, Task

SPLITS = ("train", "valid_seen", "valid_unseen")


def advantages(built: list[Chain], estimator: str, **settings: object) -> np.ndarray:
    return compute_advantages(*frames(built), algorithm(estimator, **settings))[0]["advantage"].to_numpy()


def test_trap_1_long_episodes_do_not_weigh_more_by_default() -> None:
    built = [Chain("g", [1.0]), Chain("g", [0.0] * 9)]
    np.testing.assert_allclose(advantages(built, "group_mean"), [0.5] + [-0.5] * 9)
    np.testing.assert_allclose(advantages(built, "group_mean", statistics="per_row"), [0.9] + [-0.1] * 9)


def test_trap_2_duplicated_rows_are_refused_and_padding_has_no_weight() -> None:
    rollouts, episodes = frames([Chain("g", [1.0]), Chain("g", [0.0])])
    with pytest.raises(AgentRLError, match="more than one row"):
        compute_advantages(rollouts.iloc[[0, 1, 1]], episodes, algorithm("group_mean"))
    plain, padded = (_mean_loss([2, 3], weights) for weights in ([1.0, 1.0], [1.0, 1.0, 0.0]))
    assert padded == plain


def test_trap_3_the_standard_deviation_is_the_sample_one() -> None:
    built = [Chain("g", [reward]) for reward in (10.0, 0.0, 0.0, 10.0)]
    expected = 5.0 / (np.std([10.0, 0.0, 0.0, 10.0], ddof=1) + 1e-6)
    np.testing.assert_allclose(advantages(built, "group_zscore"), [expected, -expected, -expected, expected])


def test_trap_3_that_of_hgpo_is_the_population_one() -> None:
    built = [Chain("g", [reward], ["s"]) for reward in (10.0, 0.0, 0.0, 10.0)]
    np.testing.assert_allclose(advantages(built, "hgpo"), [1.0, -1.0, -1.0, 1.0], atol=1e-5)


def test_trap_4_token_mean_does_not_depend_on_the_micro_batches() -> None:
    whole = _mean_loss([1, 4], [1.0, 1.0], rows=[0, 1])
    split = _mean_loss([1, 4], [1.0, 1.0], rows=[0]) + _mean_loss([1, 4], [1.0, 1.0], rows=[1])
    assert split == pytest.approx(whole, abs=1e-15)


def test_trap_5_the_normalisation_of_gigpo_switches_both_levels() -> None:
    built = [Chain("g", [0.0, 10.0], ["a", "b"]), Chain("g", [0.0, 0.0], ["a", "b"])]
    root_half = 1 / np.sqrt(2)
    with_std = advantages(built, "gigpo", normalisation="mean_std")
    np.testing.assert_allclose(with_std, [2 * root_half] * 2 + [-2 * root_half] * 2, atol=1e-6)
    without = advantages(built, "gigpo", normalisation="mean")
    np.testing.assert_allclose(without, [5 + 4.75, 5 + 5, -5 - 4.75, -5 - 5])


def test_trap_6_groups_are_judged_by_raw_returns_not_by_penalties() -> None:
    built = [Chain("g", [0.0], valid=[False]), Chain("g", [0.0], valid=[True])]
    frame, diagnostics = compute_advantages(*frames(built), algorithm("group_mean", penalty=0.1))
    assert diagnostics["frac_zero_std"] == 1.0
    np.testing.assert_allclose(frame["advantage"], [-0.05, 0.05])


def test_trap_6_the_filter_drops_a_failed_group_whose_penalties_differ() -> None:
    _, episodes = frames([Chain("g", [0.0], valid=[False]), Chain("g", [0.0], valid=[True])])
    assert not informative_groups(episodes["return"].to_numpy(), np.zeros(2, dtype=np.int64)).any()


def test_trap_8_a_group_of_one_is_worth_nothing_unless_raw_scores_are_asked_for() -> None:
    alone = [Chain("g", [3.0]), Chain("h", [0.0])]
    for estimator in ("group_zscore", "group_mean", "leave_one_out", "gigpo", "opo", "gpg"):
        assert advantages(alone, estimator).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(advantages(alone, "group_mean", singleton="raw"), [3.0, 0.0])
    np.testing.assert_allclose(advantages(alone, "group_zscore", singleton="raw"), [3.0, 0.0], atol=1e-5)
    with pytest.raises(ValueError, match="needs groups larger than one"):
        algorithm("group_mean", parts={"topology": {"group_size": 1}})


def test_trap_9_the_tasks_of_a_run_depend_on_nothing_but_panel_and_seed() -> None:
    tasks = {split: [Task(f"{split}/{n}", "errand", split, f"{split} {n}") for n in range(40)] for split in SPLITS}
    shuffled = {split: [*pool[7:], *pool[:7]][::-1] for split, pool in reversed(tasks.items())}
    panels, again = draw_panels(tiny(), tasks), draw_panels(tiny(), shuffled)
    assert panels == again
    assert all(len({task.task_id for task in panel}) == len(panel) for panel in panels.values())
    for iteration in range(4):
        played, again_played = (tasks_of_iteration(drawn["train"], 4, 0, iteration) for drawn in (panels, again))
        assert played == again_played
        assert len({task.task_id for task in played}) == 4


def test_trap_10_old_log_probs_are_the_trainers_unless_the_samplers_are_asked_for() -> None:
    rollouts = pd.DataFrame({"turn_id": ["a"], "response_ids": [[1, 2]], "response_logprobs": [[-0.9, -0.8]]})
    scores = pd.DataFrame({"turn_id": ["a"], "old_logprobs": [[-0.5, -0.25]]})
    advantages = pd.DataFrame({"turn_id": ["a"], "loss_weight": [1.0], "advantage": [1.0]})
    for old_logprobs, expected in (("recompute", [-0.5, -0.25]), ("sampler", [-0.9, -0.8])):
        signals = training_signals(rollouts, scores, advantages, old_logprobs, reference=False)
        assert signals["a"].old.tolist() == expected
    assert {load_algorithm(name).old_logprobs for name in preset_names("algorithms")} == {"recompute"}


def test_trap_11_an_empty_response_takes_no_place_in_statistics_over_tokens() -> None:
    built = [Chain("g", [1.0], tokens=[2]), Chain("g", [0.0], tokens=[3]), Chain("g", [0.5, 0.5], tokens=[0, 0])]
    found = advantages(built, "gdpo", process_weight=0.0)
    tokens = np.repeat(found, [2, 3, 0, 0])
    assert tokens.mean() == pytest.approx(0.0, abs=1e-9)
    assert found[2:].tolist() == [0.0, 0.0]


def test_a_penalised_turn_of_a_group_of_equal_returns_is_not_blown_up_by_epsilon() -> None:
    built = [Chain("g", [0.0, 0.0], valid=[True, False]), Chain("g", [0.0, 0.0])]
    found = compute_advantages(*frames(built), algorithm("group_zscore", penalty=0.1))[0]["advantage"]
    np.testing.assert_allclose(found, [0.0, -0.1, 0.0, 0.0])


def test_long_texts_are_compared_without_the_junk_heuristic() -> None:
    text = "the shelf holds a cup and a plate. " * 8
    pair = [text, text.replace("cup", "mug")]
    built = [Chain("g", [1.0], [pair[0]]), Chain("g", [0.0], [pair[1]])]
    settings = {"anchor": "similarity", "similarity": 0.9, "normalisation": "mean"}
    np.testing.assert_allclose(advantages(built, "gigpo", **settings), [1.0, -1.0])
    np.testing.assert_allclose(advantages(built, "gigpo", normalisation="mean"), [0.5, -0.5])


def _mean_loss(lengths: list[int], weights: list[float], rows: list[int] | None = None) -> float:
    """Token-mean loss of responses with advantages 1, 2, …; a weight beyond the lengths is a padding row of 5."""
    lengths = lengths + [5] * (len(weights) - len(lengths))
    chosen = range(len(lengths)) if rows is None else rows
    row = torch.tensor([row for row in chosen for _ in range(lengths[row])])
    logp = torch.full((len(row),), -1.0, dtype=torch.float64)
    tokens = TrainedTokens(
        logp=logp,
        old_logp=logp - 0.1,
        reference_logp=None,
        entropy=None,
        advantage=row.double() + 1,
        weight=torch.tensor(weights, dtype=torch.float64)[row],
        row=row,
        lengths=torch.tensor(lengths),
    )
    config = TokenClip(kl_coefficient=0.0)
    return policy_loss(tokens, config, count_normalisers(weights, lengths)).loss.item()
