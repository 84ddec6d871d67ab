"""Random events, and the set clip of a whole step in the form that trains: ratios first, then the responses' shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from loss_tokens import batch
from torch import Tensor

from agentbench_rl.algorithms.losses import TrainedTokens, set_loss
from agentbench_rl.algorithms.losses.ratios import response_sum
from agentbench_rl.algorithms.losses.set_clip import EventLoss, Events, EventTokens, event_loss, length_factor
from agentbench_rl.config.loss import SetClip
from tests.set_reference import PlainEvent


def random_events(lengths: Sequence[Sequence[int]], seed: int = 0, drift: float = 0.4) -> tuple[TrainedTokens, Tensor]:
    """Tokens of events with members of the given lengths (one advantage and weight each), and the event of each row."""
    event = torch.tensor([number for number, members in enumerate(lengths) for _ in members])
    flat = [length for members in lengths for length in members]
    tokens = batch(flat, seed, drift=drift)
    generator = np.random.default_rng(seed)
    advantage, weight = (torch.from_numpy(generator.normal(size=len(lengths))) for _ in range(2))
    of_token = event[tokens.row]
    return replace(tokens, advantage=advantage[of_token], weight=weight.abs()[of_token] + 0.1), event


def numbers(tokens: TrainedTokens, event: Tensor, settings: SetClip) -> Events:
    """The numbers of every event, summed over its members."""
    count = int(event.max()) + 1
    of_row = length_factor(tokens.lengths.double().numpy(), settings)
    log_ratio = response_sum(tokens.logp.detach() - tokens.old_logp, tokens) * torch.from_numpy(of_row)
    per_row = torch.stack([log_ratio, torch.ones_like(log_ratio), tokens.lengths.double()])
    sums = torch.zeros(3, count, dtype=torch.float64).index_add(1, event, per_row)
    first = [int(torch.nonzero(event[tokens.row] == number)[0]) for number in range(count)]
    return Events(*sums.numpy(), advantage=tokens.advantage[first].numpy(), weight=tokens.weight[first].numpy())


def shares(tokens: TrainedTokens, event: Tensor, loss: EventLoss, settings: SetClip, counts: Events) -> EventTokens:
    """The numbers of every event for each of the tokens of its members."""
    factor = torch.from_numpy(length_factor(tokens.lengths.double().numpy(), settings))[tokens.row]
    of_token = event[tokens.row]
    objective = torch.from_numpy(loss.share * loss.surrogate / counts.tokens)[of_token]
    coefficient, regulariser = (torch.from_numpy(values)[of_token] for values in (loss.coefficient, loss.regulariser))
    return EventTokens(coefficient * factor, regulariser * factor, objective)


def two_passes(tokens: TrainedTokens, event: Tensor, settings: SetClip) -> tuple[float, Tensor]:
    """Loss of the step and its gradient by the log-probs."""
    counts = numbers(tokens, event, settings)
    part = set_loss(tokens, settings, shares(tokens, event, event_loss(counts, settings), settings, counts))
    tokens.logp.grad = None
    part.loss.backward()
    return part.loss.item(), tokens.logp.grad.clone()


def plain_events(tokens: TrainedTokens, event: Tensor) -> list[PlainEvent]:
    """The same events member by member."""
    found = []
    for number in range(int(event.max()) + 1):
        rows = torch.nonzero(event == number).flatten().tolist()
        parts = [
            [values[tokens.row == row] for row in rows]
            for values in (tokens.logp, tokens.old_logp, tokens.reference_logp, tokens.entropy)
        ]
        first = torch.nonzero(tokens.row == rows[0])[0]
        found.append(PlainEvent(*parts, float(tokens.advantage[first]), float(tokens.weight[first])))
    return found
