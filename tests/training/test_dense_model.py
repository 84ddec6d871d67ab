"""A model of dense rewards: what a turn is read by, a gradient that no batching changes, learning, files, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agentbench_rl.algorithms.trajectory_regression import turn_scores
from agentbench_rl.config import DenseModelConfig, TinyModel, TrainingConfig
from agentbench_rl.policies.dense_model import FACTS, TENSORS, DenseModel, load_dense_model, save_dense_model
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import train_tokenizer
from agentbench_rl.training.dense_model import (
    LabelledEpisode,
    accumulate,
    dense_scores,
    fit,
    shard_dense_model,
    train_dense_model,
    turn_sequences,
)
from agentbench_rl.training.sharding import full_weights
from agentbench_rl.training.world import ALONE, World
from agentbench_rl.types import AgentRLError
from tests.training.models import chains, tiny_model
from tests.training.ranks import in_processes

TRAINING = TrainingConfig(iterations=1, learning_rate=1e-3)
SMALL = TinyModel(hidden_size=32, intermediate_size=64, layers=1, heads=2, vocabulary=270)


def model_of(dtype: torch.dtype = torch.float64, *, trained: bool = True) -> DenseModel:
    """A model on a random transformer; `trained`: its outputs are not zero."""
    model = DenseModel(tiny_model(dtype=dtype), None, own_tokens=False, mlp_size=8)
    if trained:
        torch.manual_seed(7)
        torch.nn.init.normal_(model.head[2].weight, std=0.5)
    return model.eval()


def played(turns: list[int], *, extends: bool = True) -> pd.DataFrame:
    """Chains of turns that have a token each."""
    return chains([count * 2 for count in turns], extends=extends).pipe(
        lambda rows: rows.assign(response_ids=[ids if len(ids) else np.array([5]) for ids in rows["response_ids"]])
    )


def labelled(model: DenseModel, rollouts: pd.DataFrame, outcomes: list[float]) -> list[LabelledEpisode]:
    by_episode = rollouts.groupby(rollouts["turn_id"].str.split("-").str[0], sort=False)
    return [
        LabelledEpisode(tuple(turn_sequences(model, None, rows)), outcome)
        for (_, rows), outcome in zip(by_episode, outcomes, strict=True)
    ]


def scores_of(model: DenseModel, rollouts: pd.DataFrame, training: TrainingConfig = TRAINING) -> dict[str, float]:
    return dense_scores(model, turn_sequences(model, None, rollouts), training)[0]


def gradients(model: DenseModel) -> dict[str, torch.Tensor]:
    return {name: weights.grad.clone() for name, weights in model.named_parameters() if weights.grad is not None}


@pytest.mark.parametrize("extends", [True, False], ids=["one sequence an episode", "one a turn"])
@pytest.mark.parametrize(("packing", "tokens"), [("rows", 160), ("packed", 320), ("tree", 8192), ("auto", 8192)])
def test_the_gradient_is_that_of_the_squared_error_however_a_step_is_cut(
    extends: bool, packing: str, tokens: int
) -> None:
    rollouts, outcomes = played([3, 1, 5, 2], extends=extends), [1.0, 0.0, 0.5, 1.0]
    model = model_of()
    sums = []
    for episode in labelled(model, rollouts, outcomes):
        total = torch.zeros((), dtype=torch.float64)
        for sequence in episode.sequences:
            ids = torch.from_numpy(sequence.token_ids)[None]
            states = model.backbone(input_ids=ids).last_hidden_state[0]
            total = total + turn_scores(model(states[[response.stop - 1 for response in sequence.responses]])).sum()
        sums.append(total)
    loss = (torch.stack(sums) - torch.tensor(outcomes, dtype=torch.float64)).square().mean()
    loss.backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    limits = TRAINING.model_copy(update={"packing": packing, "micro_batch_tokens": tokens})
    metrics = accumulate(model, labelled(model, rollouts, outcomes), limits)
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-12)
    found = gradients(model)
    assert found.keys() == expected.keys()
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10)


def test_a_turn_is_read_by_all_of_its_response_and_by_nothing_that_follows() -> None:
    model, rollouts = model_of(), played([2, 3])
    before = scores_of(model, rollouts)
    assert set(before) == set(rollouts["turn_id"])
    assert all(abs(score) < 1 for score in before.values())
    place = int(np.flatnonzero(rollouts["turn_id"] == "e1-3")[0])
    response = rollouts["response_ids"][place].copy()
    response[-1] = (response[-1] + 1) % 60
    changed = rollouts.copy()
    changed.at[place, "response_ids"] = response
    after = scores_of(model, changed)
    differing = {turn for turn, score in after.items() if abs(score - before[turn]) > 1e-12}
    assert differing == {"e1-3", "e1-4", "e1-5"}
    shuffled = scores_of(model, rollouts.sample(frac=1.0, random_state=0))
    assert shuffled == pytest.approx(before, abs=1e-12)


def test_an_untrained_model_pays_nothing_and_draws_no_random_number() -> None:
    transformer, state = tiny_model(), torch.get_rng_state()
    model = DenseModel(transformer, None, own_tokens=False, mlp_size=8)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(scores_of(model.eval(), played([2])).values()) == {0.0}


def test_a_model_learns_what_an_outcome_comes_from() -> None:
    rollouts = played([2] * 60)
    tokens = np.random.default_rng(0).integers(7, 10, (60, 4))
    rollouts["prompt_ids"] = [np.array([1, 2])] * len(rollouts)
    rollouts["response_ids"] = list(tokens.reshape(-1, 1))
    outcomes = (tokens[:, 1] == 7).astype(float)
    model = model_of(torch.float32, trained=False)
    episodes = labelled(model, rollouts, outcomes.tolist())
    settings = DenseModelConfig(steps=60, batch_episodes=16, learning_rate=3e-3)
    seen: list[dict[str, float]] = []
    train_dense_model(model, episodes[:40], settings, TRAINING, lambda _, metrics: seen.append(metrics))
    scores = scores_of(model, rollouts)
    sums = np.array([sum(scores[f"e{episode}-{step}"] for step in range(4)) for episode in range(60)])
    told = fit(sums[40:], outcomes[40:])
    assert len(seen) == 60
    assert seen[-1]["loss"] < 0.2 * seen[0]["loss"]
    assert told["explained_variance"] > 0.6
    assert told["loss"] == pytest.approx(np.mean((sums[40:] - outcomes[40:]) ** 2))
    assert "explained_variance" not in fit(sums[:1], np.ones(1))


def test_what_is_not_a_number_is_refused_by_turn_or_step() -> None:
    model, rollouts = model_of(torch.float32), played([1])
    with torch.no_grad():
        model.head[2].bias.fill_(torch.nan)
    with pytest.raises(AgentRLError, match=r"says nan of turn 'e0-\d'; train it anew"):
        scores_of(model, rollouts)
    settings = DenseModelConfig(steps=1)
    with pytest.raises(AgentRLError, match=r"step 0: loss nan, .*; lower dense_model\.learning_rate"):
        train_dense_model(model, labelled(model, rollouts, [1.0]), settings, TRAINING, lambda *_: None)
    rollouts.at[0, "response_ids"] = np.zeros(0, np.int64)
    with pytest.raises(AgentRLError, match="the response of turn 'e0-0' has no token"):
        scores_of(model_of(), rollouts)


def test_a_language_model_of_its_own_reads_the_policy_s_text_in_its_own_tokens() -> None:
    texts = ["open the drawer", "<|user|>you see 12 apples<|end|>"]
    policy, own = (train_tokenizer([text] * 9, 290) for text in texts)
    model = DenseModel(build_policy(SMALL, own, 0), own, own_tokens=True, mlp_size=8)
    encoded = [policy.encode(text, add_special_tokens=False) for text in texts[::-1]]
    rows = {"turn_id": ["a"], "parent_id": [None], "extends_parent": [False]}
    prompt, response = ([np.array(ids)] for ids in encoded)
    (sequence,) = turn_sequences(model, policy, pd.DataFrame(rows | {"prompt_ids": prompt, "response_ids": response}))
    (turn,) = sequence.responses
    assert own.decode(sequence.token_ids[: turn.start].tolist()) == texts[1]
    assert own.decode(sequence.token_ids[turn.start :].tolist()) == texts[0]
    assert own.convert_ids_to_tokens(sequence.token_ids.tolist())[0] == "<|user|>"
    assert turn.start < len(encoded[0])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[DenseModel, Path]:
    tokenizer = train_tokenizer(["a b c"], 270)
    model = DenseModel(build_policy(SMALL, tokenizer, 0), tokenizer, own_tokens=True, mlp_size=8, seed=3)
    torch.nn.init.normal_(model.head[2].weight)
    save_dense_model(model, tmp_path / "one")
    return model, tmp_path / "one"


def test_a_saved_model_comes_back_and_equal_models_give_equal_bytes(saved: tuple[DenseModel, Path]) -> None:
    model, directory = saved
    loaded = load_dense_model(directory)
    assert loaded.own_tokens
    assert not loaded.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    again = directory.with_name("two")
    save_dense_model(loaded, again)
    files = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (TENSORS, None, "missing or damaged"),
        (TENSORS, "cut", "missing or damaged"),
        (FACTS, None, "missing or damaged"),
        (FACTS, {"version": 2}, "newer"),
        (FACTS, {"mlp_size": 9}, "does not fit"),
        ("backbone/model.safetensors", "cut", "damaged or truncated"),
    ],
)
def test_a_damaged_model_is_refused(saved: tuple[DenseModel, Path], name: str, change: Any, message: str) -> None:
    file = saved[1] / name
    if change is None:
        file.unlink()
    elif change == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(AgentRLError, match=message):
        load_dense_model(saved[1])


def test_a_full_disk_is_an_error_of_the_operating_system(saved: tuple[DenseModel, Path], small_disk: Path) -> None:
    shutil.rmtree(saved[1])
    with pytest.raises(OSError, match=str(small_disk)):
        save_dense_model(saved[0], small_disk / "model")


def learnt(world: World, training: TrainingConfig) -> tuple[list[dict[str, float]], dict[str, torch.Tensor], Any]:
    """Metrics of every step, weights (of the first process) and scores; an episode is one micro-batch or several."""
    rollouts, outcomes = played([3, 1, 5, 2, 1]), [1.0, 0.0, 0.5, 1.0, 0.0]
    model = model_of()
    episodes = labelled(model, rollouts, outcomes)
    sequences = turn_sequences(model, None, rollouts)
    shard_dense_model(model, training, world)
    settings = DenseModelConfig(steps=5, batch_episodes=2, learning_rate=1e-2, warmup_steps=1)
    lines: list[dict[str, float]] = []
    train_dense_model(model, episodes, settings, training, lambda _, metrics: lines.append(metrics), world)
    scores, _ = dense_scores(model, sequences, training, world=world)
    weights = full_weights(model, world)
    if not world.leads:
        world.told()
    return lines, weights, scores


def test_two_processes_learn_and_say_what_one_does() -> None:
    training = TRAINING.model_copy(update={"micro_batch_tokens": 96})
    (lines, weights, scores), (told, none, known) = in_processes(2, learnt, training)
    expected, alone, said = learnt(ALONE, training)
    assert (told, none, known) == (lines, {}, scores)
    for ours, theirs in zip(lines, expected, strict=True):
        assert ours | {"processed_tokens": 0} == pytest.approx(theirs | {"processed_tokens": 0}, rel=1e-9, abs=1e-10)
    torch.testing.assert_close(weights, alone, atol=1e-10, rtol=1e-10)
    assert scores == pytest.approx(said, abs=1e-6)
