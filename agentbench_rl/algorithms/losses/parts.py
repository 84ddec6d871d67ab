"""What a loss reads and what it returns: tokens in a flat layout, without padding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TrainedTokens:
    """T trained tokens of R responses of a micro-batch.

    logp, old_logp [T]: log-probs under the policy being trained and before the update; reference_logp, entropy [T] or
    None; advantage [T]; weight [T]: loss weight of the token's response; row [T] int64: which response the token
    belongs to; lengths [R]: trained tokens of each whole response, also where a micro-batch holds a part of it.
    """

    logp: Tensor
    old_logp: Tensor
    reference_logp: Tensor | None
    entropy: Tensor | None
    advantage: Tensor
    weight: Tensor
    row: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss [T] and ratio [T], and named masks [T] of the tokens whose gradient a clip took away."""

    loss: Tensor
    ratio: Tensor
    hits: dict[str, Tensor]


@dataclass(frozen=True)
class LossParts:
    """`loss`: this micro-batch's share of the step's loss (scalar; call backward on it, shares add up).

    `objective`: detached shares of its terms (policy, kl, entropy), which add up too. `sums`: weighted sums over
    tokens, to be added over micro-batches and processes and divided by `sums["tokens"]`. `maxima`: to be maximised.
    """

    loss: Tensor
    objective: dict[str, Tensor]
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]
