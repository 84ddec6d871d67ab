"""Work in two processes, sharded over them: scores, losses, gradients and weights are those of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.algorithm import CriticConfig
from agentbench_rl.config.loss import ClipCov, LossConfig, SetClip, TokenClip
from agentbench_rl.policies.critic import build_critic
from agentbench_rl.training import logprobs
from agentbench_rl.training.checkpoint import load_trainer_state, save_trainer_state
from agentbench_rl.training.critic import CriticInTraining
from agentbench_rl.training.scoring import TokenScores, policy_measure, score_tokens, sharded
from agentbench_rl.training.sharding import full, full_weights, recompute_blocks, shard_critic, shard_policy
from agentbench_rl.training.trainer import UpdateResult
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import AgentRLError
from tests.training.models import VOCABULARY, chains, tiny_model
from tests.training.ranks import in_processes
from tests.training.team import event_advantages, team_rollouts
from tests.training.updates import TRAINING, advantages_of, scores_of, update

#: A step is many micro-batches.
MANY = TRAINING.model_copy(update={"learning_rate": 1e-3, "epochs": 2, "micro_batch_tokens": 90})
RESPONSES: list[LossConfig] = [
    TokenClip(kl_coefficient=0.1, entropy_coefficient=0.02),
    TokenClip(aggregation="sequence_mean_token_mean", kl_coefficient=0.0),
    ClipCov(),
]
EVENTS: list[LossConfig] = [
    SetClip(kl_coefficient=0.1, entropy_coefficient=0.02),
    SetClip(set_norm="none", len_norm="mean", reduction="token"),
]
Updated = dict[str, Any]


def trained(
    world: World,
    loss: LossConfig,
    training: TrainingConfig = MANY,
    rollouts: pd.DataFrame | None = None,
    state: Path | None = None,
    dtype: torch.dtype = torch.float64,
    kind: str = "llama",
    critic: str | None = None,
    broken: int | None = None,
) -> Updated:
    """An update of the tiny model: metrics of its steps, its weights (of the first process), its optimizer's moments.

    state: where the optimizer's state is read, if it is there, and written. broken: a token that gives no numbers.
    """
    events = isinstance(loss, SetClip)
    rows = rollouts if rollouts is not None else team_rollouts() if events else chains([3, 5, 1, 4, 2, 6, 3])
    model = tiny_model(kind, dtype)
    scores = scores_of(model, rows, 0.15)
    scores["values"] = [np.zeros(len(ids)) for ids in rows["response_ids"]]
    advantages = event_advantages(rows) if events else advantages_of(rows)
    silent = advantages["event_id"].isin(advantages["event_id"].unique()[::3])
    advantages["advantage"] = advantages["advantage"].mask(silent, 0.0)
    advantages["value_targets"] = [np.linspace(-1, 1, len(ids)) for ids in rows["response_ids"]]
    if broken is not None:
        with torch.no_grad():
            model.model.embed_tokens.weight[broken] = np.nan
    in_training = None
    if critic is not None:
        head = build_critic(tiny_model(kind, dtype) if critic == "separate" else model, critic)
        shard_critic(head, training, world)
        in_training = CriticInTraining(head, None, CriticConfig(backbone=critic, learning_rate=1e-2))
    if training.gradient_checkpointing:
        recompute_blocks(model)
    shard_policy(model, training, world)
    before = load_trainer_state(state, model) if state is not None and state.exists() else None
    result: UpdateResult = update(
        model,
        rows,
        scores=scores,
        advantages=advantages,
        loss=loss,
        training=training,
        state=before,
        world=world,
        critic=in_training,
    )
    reached = result.states["policy"]
    if state is not None:
        save_trainer_state(state, reached, world)
    moments = {name: full(value) for name, value in reached.moments.items()}
    weights = full_weights(model, world)
    if in_training is not None:
        weights |= {f"critic.{name}": value for name, value in full_weights(in_training.model, world).items()}
    return {"steps": result.steps, "weights": weights, "moments": moments, "state": replace(reached, moments={})}


def every(world: World, cases: list[tuple[Any, ...]]) -> list[Updated]:
    found = [trained(world, *case) for case in cases]
    if not world.leads:
        world.told()
    return found


def assert_same(found: list[Updated], expected: list[Updated], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one["weights"], other["weights"], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(one["moments"], other["moments"], atol=tolerance, rtol=tolerance)
        for step, alone in zip(one["steps"], other["steps"], strict=True):
            told = {
                name: value
                for name, value in step.items()
                if name not in ("micro_batches", "processed_tokens", "padding_share")
            }
            assert told == pytest.approx({name: alone[name] for name in told}, rel=max(tolerance, 1e-9), abs=tolerance)


def check_both(cases: list[tuple[Any, ...]], tolerance: float = 1e-10) -> list[Updated]:
    """Check that two processes find what one does; returns what the first one found."""
    first, second = in_processes(2, every, cases)
    assert_same(first, every(ALONE, cases), tolerance)
    for one, other in zip(first, second, strict=True):
        assert one["steps"] == other["steps"]
        assert other["weights"] == {}
    return first


def test_q7_every_kind_of_loss_is_that_of_one_process() -> None:
    found = check_both([(loss,) for loss in RESPONSES + EVENTS])
    assert {step["micro_batches"] % 2 for one in found for step in one["steps"]} == {0.0, 1.0}


def test_any_number_of_processes_will_do(tmp_path: Path) -> None:
    """Three, by which neither widths nor micro-batches divide; one goes on with what they wrote."""
    rows = chains([2, 1, 3, 1])

    def case(name: str) -> list[tuple[Any, ...]]:
        return [(RESPONSES[0], MANY, rows, tmp_path / name)]

    found = in_processes(3, every, case("three"))
    assert_same(found[0], every(ALONE, case("one")), 1e-10)
    assert_same(every(ALONE, case("three")), every(ALONE, case("one")), 1e-10)


def test_a_process_without_rows_takes_part() -> None:
    found = check_both(
        [(loss, MANY, rows) for loss, rows in ((RESPONSES[0], chains([1])), (EVENTS[0], team_rollouts([1])))]
    )
    assert found[0]["steps"][0]["micro_batches"] == 1


def test_every_packing_is_that_of_one_process() -> None:
    """Groups that share a prompt, whose trees the processes divide among them."""
    rollouts = chains([2, 3, 2, 1, 2, 3, 1])
    roots = rollouts["parent_id"].isna()
    prompt = np.arange(20)
    rollouts["prompt_ids"] = [prompt if root else own for root, own in zip(roots, rollouts["prompt_ids"], strict=True)]
    layouts = [MANY.model_copy(update={"packing": name}) for name in ("rows", "packed", "tree")]
    found = check_both([(RESPONSES[0], training, rollouts) for training in layouts])
    assert all(step["micro_batches"] > 1 for one in found for step in one["steps"])


Scores = dict[str, TokenScores]


def scored(world: World, cases: list[tuple[pd.DataFrame, str]]) -> list[Scores]:
    """Everything that a policy and a critic on its states say of rollouts, by packing."""
    found = []
    for rollouts, packing in cases:
        model = tiny_model("qwen2")
        critic = build_critic(model, "shared")
        with torch.no_grad():
            critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.weight.numel()))
        shard_critic(critic, MANY, world)
        measure = sharded(model, policy_measure(model, critic, entropy=True), MANY, world)
        told = {"packing": packing, "world": world, "turns": set(rollouts["turn_id"][:-1])}
        found.append(score_tokens(model, measure, rollouts, 90, **told))
    if not world.leads:
        world.told()
    return found


def test_scores_are_those_of_one_process() -> None:
    """Also where one process, or both, have nothing to score."""
    cases = [(chains([3, 5, 1, 4, 2, 6, 3]), packing) for packing in ("rows", "packed", "tree")]
    cases += [(chains([2]), "auto"), (chains([1]), "auto")]
    expected = scored(ALONE, cases)
    assert [set(one) for one in expected] == [{"logprobs", "entropies", "values", "next_values"}] * 4 + [set()]
    for found in in_processes(2, scored, cases):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.keys() == theirs.keys()
            for name, numbers in theirs.items():
                assert ours[name].keys() == numbers.keys()
                for turn, values in numbers.items():
                    np.testing.assert_allclose(ours[name][turn], values, rtol=1e-6, atol=1e-7)


def test_what_one_process_cannot_compute_is_skipped_by_both() -> None:
    rollouts = chains([3, 5, 1, 4, 2, 6, 3])
    rare = 60
    for column in ("prompt_ids", "response_ids"):
        rollouts[column] = [np.minimum(ids, rare - 1) for ids in rollouts[column]]
    rollouts.at[0, "prompt_ids"] = np.array([rare, 1])
    losses = [RESPONSES[0], ClipCov()]
    cases = [(loss, TRAINING, rollouts, None, torch.float64, "llama", None, rare) for loss in losses]
    cases += [(RESPONSES[0], TRAINING, rollouts, None, torch.float64, "llama", "shared", rare)]
    for found in in_processes(2, every, cases):
        assert [one["state"].skipped for one in found] == [1, 1, 1]
        assert all(one["steps"][0]["skipped_steps"] == 1.0 for one in found)


@pytest.mark.extras
def test_models_with_tied_weights_and_critics_are_sharded_too() -> None:
    def case(kind: str, critic: str | None) -> tuple[Any, ...]:
        return RESPONSES[0], MANY, None, None, torch.float64, kind, critic

    check_both([case("tied", None), case("llama", "shared"), case("qwen2", "separate")])


def test_blocks_that_are_computed_again_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    again = MANY.model_copy(update={"gradient_checkpointing": True})
    kept, recomputed = every(ALONE, [(RESPONSES[0], MANY), (RESPONSES[0], again)])
    assert kept["steps"] == recomputed["steps"]
    assert all(torch.equal(value, recomputed["weights"][name]) for name, value in kept["weights"].items())
    monkeypatch.setattr(logprobs, "HEAD_LOGITS", 5 * VOCABULARY)  # and the logits again, chunk by chunk
    assert_same(check_both([(RESPONSES[0], again)]), [kept], 1e-10)


@pytest.mark.extras
def test_bfloat16_is_that_of_one_process_within_its_rounding() -> None:
    coarse = TRAINING.model_copy(update={"dtype": "bfloat16"})
    case = [(RESPONSES[0], coarse, None, None, torch.float32)]
    first, _ = in_processes(2, every, case)
    (alone,) = every(ALONE, case)
    ours, theirs = first[0]["steps"][0], alone["steps"][0]
    assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=0.1)
    assert {value.dtype for value in (first[0]["weights"] | first[0]["moments"]).values()} == {torch.float32}


def test_float32_agrees_to_a_relative_1e5() -> None:
    """One step from weights of about 0.3: the moments are the gradient, times a constant."""
    (first, _), (alone,) = in_processes(2, every, FLOAT32), every(ALONE, FLOAT32)
    for name, value in alone["moments"].items():
        if name.startswith("exp_avg."):
            assert float((first[0]["moments"][name] - value).norm() / value.norm()) < 1e-5, name


FLOAT32: list[tuple[Any, ...]] = [(RESPONSES[0], TRAINING, None, None, torch.float32)]


def test_a_state_goes_on_in_another_number_of_processes(tmp_path: Path) -> None:
    def case(name: str) -> list[tuple[Any, ...]]:
        return [(RESPONSES[0], MANY, None, tmp_path / name)] * 2

    expected = every(ALONE, case("alone"))
    in_processes(2, every, case("both")[:1])
    in_processes(1, every, case("one")[:1])
    every(ALONE, case("after")[:1])
    found = [
        every(ALONE, case("both")[1:]),
        in_processes(2, every, case("one")[1:])[0],
        in_processes(2, every, case("after")[1:])[0],
    ]
    for one in found:
        assert_same(one, expected[1:], 1e-10)
        assert one[0]["state"].steps == 4


def test_a_state_of_which_a_part_is_missing_or_cut_off_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    in_processes(2, every, [(RESPONSES[0], MANY, None, state)])
    for name in ("__1_0.distcp", "__0_0.distcp", ".metadata", "trainer.json"):
        content = (state / name).read_bytes()
        (state / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(AgentRLError, match="missing or damaged"):
            load_trainer_state(state)
        (state / name).unlink()
        with pytest.raises(AgentRLError, match="missing or damaged"):
            load_trainer_state(state)
        (state / name).write_bytes(content)
    with pytest.raises(AgentRLError, match="the trainer state belongs to another model"):
        trained(ALONE, RESPONSES[0], MANY, None, state, torch.float64, "tied")
    assert load_trainer_state(state).steps == 2
