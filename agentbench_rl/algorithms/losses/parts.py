"""What a loss reads and what it returns: tokens in a flat layout, without padding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TrainedTokens:
    """T trained tokens of R responses of a micro-batch.

    logp, old_logp [T]: log-probs under the policy being trained and before the update; reference_logp, entropy [T] or
    None; advantage [T]; weight [T]: loss weight of the token's response; row [T] int64: which response the token
    belongs to; lengths [R]: trained tokens of each response. Losses that pool over a response (sequence_clip, gmpo,
    the sequence mask) need it whole in one micro-batch.
    entropy_scores [T]: z-scores of the tokens' entropies (entropy_clip). gate [T] bool: tokens chosen by
    `gates.step_gate` (clip_cov, kl_cov). source [T] int64: 0 for a response of this iteration, s > 0 for a replayed one
    of the s-th source, whose reference_logp and entropy are not read; None: all are of this iteration.
    behaviour_logp [T]: log-probs under the policy that sampled a token (moved_centre); of responses of this iteration
    that is the old policy, and where all are of this iteration it may be None. Replayed responses then have
    reference_logp and entropy like the others.
    """

    logp: Tensor
    old_logp: Tensor
    reference_logp: Tensor | None
    entropy: Tensor | None
    advantage: Tensor
    weight: Tensor
    row: Tensor
    lengths: Tensor
    entropy_scores: Tensor | None = None
    gate: Tensor | None = None
    source: Tensor | None = None
    behaviour_logp: Tensor | None = None


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss [T] and ratio [T], and named masks [T] of the tokens that a clip or a mask acted on.

    centre [T]: the middle of a clip that moves.
    """

    loss: Tensor
    ratio: Tensor
    hits: dict[str, Tensor]
    centre: Tensor | None = None


@dataclass(frozen=True)
class LossParts:
    """`loss`: this micro-batch's share of the step's loss (scalar; call backward on it, shares add up).

    `objective`: detached shares of its terms (policy, kl, entropy, and replay where there are other sources), which
    add up too. `sums`: weighted sums over the tokens of this iteration's responses, to be added over micro-batches and
    processes and divided by `sums["tokens"]` (0 in a step of replayed responses only); where the clip has a centre,
    those named `replayed_...` are over replayed responses, to be divided by `sums["replayed_tokens"]`. `maxima`: to be
    maximised.
    """

    loss: Tensor
    objective: dict[str, Tensor]
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]
