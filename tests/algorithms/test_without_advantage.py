"""Which losses have no gradient for a response without advantage: each says so itself, and it is true."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from loss_tokens import batch, step
from pydantic import TypeAdapter

from agentbench_rl.algorithms.losses import LOSSES, count_normalisers
from agentbench_rl.algorithms.losses.set_clip import Events, event_loss
from agentbench_rl.config.loss import LossConfig, SetClip

LENGTHS = [3, 7, 2, 9, 5]
#: Those with a gradient of their own for tokens that the policy gradient leaves alone.
SPEAKING = {"kl_cov"}


def loss_of(kind: str, **changes: float) -> LossConfig:
    loss: LossConfig = TypeAdapter(LossConfig).validate_python({"kind": kind, "kl_coefficient": 0.0, **changes})
    return loss


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_tells_whether_responses_without_advantage_have_no_gradient(kind: str) -> None:
    tokens = batch(LENGTHS, drift=1.5)
    silent = (tokens.row == 1) | (tokens.row == 3)
    tokens = dataclasses.replace(tokens, advantage=tokens.advantage.masked_fill(silent, 0.0))
    loss = loss_of(kind)
    _, gradient, _ = step(tokens, [tokens], loss, count_normalisers([1.0] * len(LENGTHS), LENGTHS))
    assert gradient[~silent].abs().max() > 0
    assert bool((gradient[silent] == 0).all()) == loss.silent_without_advantage == (kind not in SPEAKING)


def test_an_event_without_advantage_has_no_gradient() -> None:
    told = np.array([[0.3, 2.0, 8.0, 0.0, 1.0], [-30.0, 1.0, 2.0, 0.0, 2.0], [0.1, 3.0, 9.0, 1.0, 1.0]]).T
    coefficient = event_loss(Events(*told), SetClip()).coefficient
    assert SetClip().silent_without_advantage
    assert coefficient[:2].tolist() == [0.0, 0.0]
    assert coefficient[2] > 0


@pytest.mark.parametrize("kind", [*LOSSES, "set_clip"])
@pytest.mark.parametrize("term", ["kl_coefficient", "entropy_coefficient"])
def test_kl_and_entropy_are_of_all_responses(kind: str, term: str) -> None:
    assert not loss_of(kind, **{term: 0.01}).silent_without_advantage
