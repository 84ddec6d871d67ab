"""Events in the trainer: the set ratio over micro-batches, models and steps, and several policies in one update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.config.loss import ClipCov, LossConfig, SetClip, TokenClip
from agentbench_rl.policies.critic import build_critic
from agentbench_rl.training.checkpoint import TrainerState
from agentbench_rl.training.critic import CriticInTraining
from agentbench_rl.training.events import connected
from agentbench_rl.training.logprobs import token_logprobs
from agentbench_rl.training.packing import packed_batches, row_batches
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.training.trainer import UpdateResult, update_policy
from agentbench_rl.types import AgentRLError
from tests.set_reference import PlainEvent, plain_set_loss
from tests.training.models import chains, tiny_model
from tests.training.team import (
    SIZES,
    by_policy,
    event_advantages,
    flat_gradient,
    step_gradients,
    team_rollouts,
    team_sequences,
    team_signals,
)
from tests.training.updates import TRAINING, advantages_of, same, scores_of, update, weights

REGULARISED = SetClip(kl_coefficient=0.1, entropy_coefficient=0.02)
LOSSES: list[SetClip] = [
    REGULARISED,
    SetClip(set_norm="none", len_norm="mean", reduction="member", clip_low=0.1, clip_high=0.1),
    SetClip(set_norm="mean", len_norm="sqrt", reduction="token", kl_coefficient=0.1),
]


def plain_gradient(model: Any, rollouts: pd.DataFrame, signals: dict[str, Any], loss: SetClip) -> tuple[float, Any]:
    """Loss and gradient of the objective with all rows in one forward pass; members without tokens count."""
    (batch,) = packed_batches(team_sequences(rollouts, signals), 4096)
    logp, entropy = token_logprobs(model, batch, entropy=True)
    spans = {span.turn_id: slice(span.start, span.stop) for span in batch.spans}
    events = []
    for _, rows in rollouts.groupby("event_id", sort=False):
        places = [spans.get(turn, slice(0, 0)) for turn in rows["turn_id"]]
        told = [signals[turn] for turn in rows["turn_id"]]
        parts = [[values[place] for place in places] for values in (logp, entropy)]
        old, reference = ([torch.from_numpy(getattr(one, key)) for one in told] for key in ("old", "reference"))
        advantage = next(float(one.advantage[0]) for one in told if len(one.advantage))
        events.append(PlainEvent(parts[0], old, reference, parts[1], advantage, told[0].weight))
    model.zero_grad()
    total = plain_set_loss(events, loss)
    total.backward()
    return total.item(), flat_gradient(model)


@pytest.mark.parametrize("loss", LOSSES, ids=["sqrt", "none", "mean"])
def test_q7_micro_batches_and_packing_leave_the_gradient_that_of_the_objective_in_one_pass(loss: SetClip) -> None:
    model, rollouts = tiny_model(), team_rollouts()
    signals = team_signals(model, rollouts)
    expected, gradient = plain_gradient(model, rollouts, signals, loss)
    sequences = team_sequences(rollouts, signals)
    count = len(sequences)
    quarters = [
        row
        for part in np.array_split(np.arange(count), 4)
        for row in packed_batches([sequences[i] for i in part], 4096)
    ]
    halves = [*row_batches(sequences[::2], 4096), *packed_batches(sequences[1::2], 4096)]
    found = [
        step_gradients({"policy": model}, {"policy": batches}, signals, loss)
        for batches in (packed_batches(sequences, 4096), halves, quarters, row_batches(sequences, 16))
    ]
    for gradients, metrics in found:
        assert metrics["loss"] == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(gradients["policy"], gradient, atol=1e-10, rtol=0)
        assert metrics == pytest.approx(found[0][1])
    assert 0 < found[0][1]["clip_share"] < 1


def test_q2_the_order_of_rows_changes_nothing() -> None:
    model, rollouts = tiny_model(), team_rollouts()
    found = []
    for order in (np.arange(len(rollouts)), np.random.default_rng(0).permutation(len(rollouts))):
        rows = rollouts.iloc[order].reset_index(drop=True)
        signals = team_signals(model, rollouts, event_advantages(rollouts).iloc[order])
        batches = by_policy(team_sequences(rows, signals), signals)
        found.append(step_gradients({"policy": model}, batches, signals, REGULARISED)[0]["policy"])
    torch.testing.assert_close(found[1], found[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "loss", [REGULARISED, TokenClip(kl_coefficient=0.1), ClipCov(share=0.3, cov_low=-0.5, cov_high=50.0)], ids=str
)
@pytest.mark.parametrize("together", [False, True], ids=["own sequences", "shared sequences"])
def test_q7_members_in_several_models_have_the_gradient_of_one_model_with_these_weights(
    loss: LossConfig, together: bool
) -> None:
    joint, rollouts = tiny_model(), team_rollouts()
    if together:  # every policy's turn extends another's
        rollouts = rollouts.assign(parent_id=rollouts["turn_id"].shift(), extends_parent=True)
        rollouts.loc[0, ["parent_id", "extends_parent"]] = (None, False)
    signals = team_signals(joint, rollouts)
    sequences = team_sequences(rollouts, signals)
    expected, metrics = step_gradients({"policy": joint}, {"policy": row_batches(sequences, 4096)}, signals, loss)
    names = ("solver", "checker", "router")
    rollouts["policy"] = np.resize(names, len(rollouts))
    signals = team_signals(joint, rollouts)
    models = {name: tiny_model() for name in names}
    batches = by_policy(team_sequences(rollouts, signals), signals)
    assert set(batches) == set(names)
    found, found_metrics = step_gradients(models, batches, signals, loss)
    # some norms of the model are computed in float32: summed over the responses of a sequence, they round
    torch.testing.assert_close(sum(found.values()), expected["policy"], atol=1e-6 if together else 1e-10, rtol=0)
    assert found_metrics == pytest.approx(metrics)
    assert all(gradient.abs().max() > 1e-3 for gradient in found.values())


def test_q3_a_dropped_event_leaves_the_objective_of_the_others() -> None:
    model, rollouts = tiny_model(), team_rollouts()
    advantages = event_advantages(rollouts)
    dropped = rollouts["event_id"] == "v3"
    without = rollouts[~dropped].reset_index(drop=True)
    found = []
    for frame, told in (
        (rollouts, advantages.assign(loss_weight=advantages["loss_weight"].mask(dropped, 0.0))),
        (without, advantages[~dropped]),
    ):
        result = update(tiny_model(), frame, advantages=told, loss=SetClip(), scores=scores_of(model, frame, 0.05))
        found.append(result.steps[0])
    assert found[0] == found[1]
    assert found[0]["events"] == len(SIZES) - 1


@pytest.mark.parametrize("lost", ["zero weight", "no row"])
def test_q3_an_event_that_lost_a_member_is_refused_and_never_a_smaller_set(lost: str) -> None:
    rollouts = team_rollouts()
    advantages = event_advantages(rollouts)
    row = rollouts.index[rollouts["turn_id"] == "v3.m2"]
    advantages = advantages.drop(index=row) if lost == "no row" else advantages
    if lost == "zero weight":
        advantages.loc[row, "loss_weight"] = 0.0
    with pytest.raises(AgentRLError, match=r"event v3: members \[0, 1, 3\] of 4 are to be trained"):
        update(tiny_model(), rollouts, advantages=advantages, loss=SetClip())
    update(tiny_model(), rollouts, advantages=advantages, loss=TokenClip())  # losses of responses train the others


def test_an_event_of_which_responses_are_missing_in_a_step_is_refused() -> None:
    model, rollouts = tiny_model(), team_rollouts()
    signals = team_signals(model, rollouts)
    batches = row_batches(team_sequences(rollouts, signals)[:-1], 4096)
    with pytest.raises(AgentRLError, match="event v5: 1 of its 2 responses are in this optimizer step"):
        step_gradients({"policy": model}, {"policy": batches}, signals, SetClip())


@pytest.mark.parametrize("column", ["advantage", "loss_weight"])
def test_members_with_different_credit_are_refused(column: str) -> None:
    rollouts = team_rollouts()
    advantages = event_advantages(rollouts)
    advantages.loc[5, column] += 0.25
    with pytest.raises(AgentRLError, match="event v2: its members have different advantages or loss weights"):
        update(tiny_model(), rollouts, advantages=advantages, loss=SetClip())


@pytest.mark.parametrize("loss", [SetClip(), TokenClip()], ids=["set_clip", "token_clip"])
def test_an_event_is_never_split_over_optimizer_steps(loss: LossConfig) -> None:
    rollouts = team_rollouts()
    lengths = rollouts["response_ids"].map(len).groupby(rollouts["event_id"], sort=False).sum()
    training = TRAINING.model_copy(update={"minibatches": len(SIZES), "epochs": 2})
    steps = update(tiny_model(), rollouts, advantages=event_advantages(rollouts), loss=loss, training=training).steps
    for epoch in (steps[: len(SIZES)], steps[len(SIZES) :]):
        assert sorted(step["trained_tokens"] for step in epoch) == sorted(lengths)


def test_sequences_are_connected_through_events_of_other_sequences() -> None:
    rollouts = chains([2, 1, 2, 1, 1], seed=3)
    rollouts["event_id"] = ["a", "b", "c", "d", "c", "b", "e"]
    rollouts["response_ids"] = [np.array([1])] * len(rollouts)
    rollouts["response_logprobs"] = [np.array([-1.0])] * len(rollouts)
    signals = team_signals(tiny_model(), rollouts, advantages_of(rollouts))
    groups = connected(training_sequences(rollouts), signals)
    found = [[response.turn_id for sequence in group for response in sequence.responses] for group in groups]
    assert found == [["e0-0", "e0-1", "e3-0"], ["e1-0", "e2-0", "e2-1"], ["e4-0"]]


def test_responses_that_are_events_of_their_own_are_trained_in_the_order_they_always_were() -> None:
    rollouts = chains([3, 4, 2, 5, 3, 2])
    told = rollouts.assign(event_id=rollouts["turn_id"], event_size=1, member=0, policy="policy")
    training = TRAINING.model_copy(update={"minibatches": 3})
    found = [update(tiny_model(), frame, training=training).steps for frame in (rollouts, told)]
    assert found[0] == found[1]
    sequences = np.array([len(sequence.token_ids) for sequence in training_sequences(rollouts)])
    order = np.random.default_rng([0, 0, 0]).permutation(len(sequences))
    processed = [float(sum(sequences[part])) for part in np.array_split(order, 3)]
    assert [round(step["processed_tokens"] * (1 - step["padding_share"])) for step in found[0]] == processed


def update_team(models: dict[str, Any], rollouts: pd.DataFrame, **changes: Any) -> UpdateResult:
    arguments: dict[str, Any] = {
        "states": {},
        "scores": scores_of(tiny_model(), rollouts, 0.1),
        "advantages": event_advantages(rollouts),
        "training": TRAINING,
        "loss": REGULARISED,
        "old_logprobs": "recompute",
        "seed": 0,
        "iteration": 0,
    } | changes
    return update_policy(models, rollouts=rollouts, **arguments)


def team_models() -> dict[str, Any]:
    return {name: tiny_model(dtype=torch.float32) for name in ("solver", "checker")}


def test_a_policy_makes_the_steps_in_which_it_has_responses() -> None:
    rollouts = team_rollouts([1, 1, 1, 1]).assign(policy=["solver", "checker", "solver", "solver"])
    rollouts["response_ids"] = [np.array([3, 4])] * 4
    models = team_models()
    before = weights(models["checker"])
    training = TRAINING.model_copy(update={"minibatches": 4})
    result = update_team(models, rollouts, training=training)
    assert {name: state.steps for name, state in result.states.items()} == {"solver": 3, "checker": 1}
    assert [("checker_optimizer_steps" in step, "solver_optimizer_steps" in step) for step in result.steps].count(
        (True, False)
    ) == 1
    assert all(step["optimizer_steps"] == 1.0 and step["gradient_norm"] > 0 for step in result.steps)
    assert not same(before, weights(models["checker"]))
    later = update_team(models, rollouts, training=training, states=result.states, iteration=1)
    assert {name: state.steps for name, state in later.states.items()} == {"solver": 6, "checker": 2}


def test_the_gradient_norm_of_a_step_is_that_of_all_policies_together() -> None:
    rollouts = team_rollouts(policies=("solver", "checker"))
    (step,) = update_team(team_models(), rollouts).steps
    assert step["gradient_norm"] == pytest.approx(np.hypot(step["solver_gradient_norm"], step["checker_gradient_norm"]))
    assert {"events", "set_size", "clip_share", "clip_share_k4", "ratio_mean", "log_ratio_abs_mean"} <= step.keys()
    assert step["events"] == len(SIZES)


def test_the_metrics_of_a_role_bear_its_name_where_it_alone_has_responses() -> None:
    rollouts = team_rollouts(policies=("solver",))
    (named,) = update_team({"solver": tiny_model()}, rollouts).steps
    (single,) = update_team({"policy": tiny_model()}, rollouts).steps
    own = {"gradient_norm", "optimizer_steps", "skipped_steps"}
    assert named == single | {f"solver_{name}": single[name] for name in own}


def test_a_step_that_is_not_finite_is_skipped_by_all_policies_that_take_part() -> None:
    rollouts, models = team_rollouts(policies=("solver", "checker")), team_models()
    with torch.no_grad():
        models["checker"].lm_head.weight[5] = np.nan
    before = weights(models["solver"])
    result = update_team(models, rollouts)
    assert {name: state.skipped for name, state in result.states.items()} == {"solver": 1, "checker": 1}
    assert (result.steps[0]["optimizer_steps"], result.steps[0]["skipped_steps"]) == (0.0, 1.0)
    assert same(before, weights(models["solver"]))


def test_the_first_pass_is_paid_for() -> None:
    rollouts = team_rollouts()
    advantages = event_advantages(rollouts)
    once, twice = (
        update(tiny_model(), rollouts, advantages=advantages, loss=loss) for loss in (TokenClip(), SetClip())
    )
    assert twice.steps[0]["processed_tokens"] == 2 * once.steps[0]["processed_tokens"]


def test_a_single_model_is_trained_on_all_responses_whoever_sampled_them() -> None:
    found = []
    for rollouts in (team_rollouts(), team_rollouts(policies=("policy", "explorer"))):
        model = tiny_model()
        found.append(
            (update(model, rollouts, advantages=event_advantages(rollouts), loss=SetClip()).steps, weights(model))
        )
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


def test_a_policy_without_a_model_and_a_critic_of_several_policies_are_refused() -> None:
    rollouts, models = team_rollouts(policies=("solver", "checker")), team_models()
    with pytest.raises(AgentRLError, match=r"turn v1\.m0 is of the policy checker.*known policies: solver, router"):
        update_team({"solver": models["solver"], "router": models["checker"]}, rollouts)
    critic = CriticInTraining(build_critic(tiny_model(), "separate"), TrainerState(), CriticConfig())
    scores = scores_of(tiny_model(), rollouts)
    scores["values"] = [np.zeros(len(ids)) for ids in rollouts["response_ids"]]
    advantages = event_advantages(rollouts).assign(value_targets=scores["values"])
    with pytest.raises(AgentRLError, match="a critic goes with one policy, and there are 2: solver, checker"):
        update_team(models, rollouts, critic=critic, scores=scores, advantages=advantages)
