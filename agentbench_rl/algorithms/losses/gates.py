"""Covariance gates of a whole optimizer step: which tokens Clip-Cov silences and KL-Cov charges.

c = (A - mean A)(logp - mean logp), means over the n tokens of a source in the step.
clip_cov: max(1, floor(share n)) tokens drawn without replacement among those that the token clip leaves their gradient
and that have cov_low < c < cov_high (all of them if they are fewer). kl_cov: the max(1, floor(share n)) tokens of
largest c. Source: arXiv 2505.22617. Published code takes means, n and tokens per micro-batch, so
its choice depends on the split; here they are the step's. The draw of a token is a function of (seed, id of its
response, its place in the response), so it depends neither on the order of rows nor on the split.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from numpy.typing import NDArray

from agentbench_rl.algorithms.losses.parts import TrainedTokens
from agentbench_rl.config.loss import ClipCov, KlCov, LossConfig
from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def needs_gate(config: LossConfig) -> TypeGuard[ClipCov | KlCov]:
    """Whether the loss chooses tokens over the whole optimizer step, before its first micro-batch is trained."""
    return isinstance(config, ClipCov | KlCov)


def gate_of(tokens: TrainedTokens, settings: ClipCov | KlCov) -> Tensor:
    """The gate [T] of a micro-batch; raises AgentRLError where it was not computed."""
    if tokens.gate is None:
        raise AgentRLError(f"loss.kind: {settings.kind} needs the gate of the whole optimizer step (step_gate)")
    return tokens.gate


def step_gate(
    config: ClipCov | KlCov,
    logp: Floats,
    old_logp: Floats,
    advantage: Floats,
    lengths: Sequence[int],
    turn_ids: Sequence[str],
    seed: Sequence[int],
    sources: Sequence[int] | None = None,
) -> Bools:
    """Gate [T] of the T tokens of one optimizer step, the tokens of its R responses one after the other.

    logp, old_logp, advantage [T]; lengths, turn_ids, sources [R]: a gate is chosen among the tokens of each source by
    itself. seed: non-negative numbers that name the step (seed, iteration, epoch, minibatch).
    """
    draws = np.concatenate([np.zeros(0), *(_draws(key, n, seed) for key, n in zip(turn_ids, lengths, strict=True))])
    source = np.repeat(np.zeros(len(lengths), np.int64) if sources is None else np.asarray(sources), lengths)
    gate = np.zeros(len(logp), np.bool_)
    for number in np.unique(source):
        part = np.flatnonzero(source == number)
        chosen = _choose(config, logp[part], old_logp[part], advantage[part], draws[part])
        gate[part[chosen]] = True
    return gate


def _choose(
    config: ClipCov | KlCov, logp: Floats, old_logp: Floats, advantage: Floats, draws: Floats
) -> NDArray[np.int64]:
    covariance = (advantage - _mean(advantage)) * (logp - _mean(logp))
    count = max(1, int(config.share * len(logp)))
    if isinstance(config, KlCov):
        return np.lexsort((draws, -covariance))[:count]
    log_ratio = logp - old_logp
    clipped = (advantage > 0) & (log_ratio > math.log1p(config.clip_high))
    if config.clip_low < 1:
        clipped |= (advantage < 0) & (log_ratio < math.log1p(-config.clip_low))
    candidates = np.flatnonzero(~clipped & (covariance > config.cov_low) & (covariance < config.cov_high))
    return candidates[np.argsort(draws[candidates], kind="stable")[:count]]


def _mean(values: Floats) -> float:
    return math.fsum(values) / len(values)  # exactly rounded: the same in any order


def _draws(turn_id: str, length: int, seed: Sequence[int]) -> Floats:
    key = int.from_bytes(hashlib.blake2b(turn_id.encode(), digest_size=16).digest())
    return np.random.default_rng([*seed, key]).random(length)
