"""What the loss needs for each trained response, gathered from the files and checked against its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Signal:
    """Of one response of T tokens: advantage, old and reference log-probs [T], loss weight (> 0)."""

    advantage: Floats
    old: Floats
    reference: Floats | None
    weight: float


def training_signals(
    rollouts: pd.DataFrame,
    scores: pd.DataFrame | None,
    advantages: pd.DataFrame,
    old_logprobs: Literal["recompute", "sampler"],
    *,
    reference: bool,
) -> dict[str, Signal]:
    """Signals by turn_id, of the responses with a positive loss weight.

    Raises AgentRLError for unknown turns, absent scores, values that are not finite, and lengths that differ.
    """
    lengths = {turn: len(ids) for turn, ids in zip(rollouts["turn_id"], rollouts["response_ids"], strict=True)}
    old_source = _column(rollouts, "turn_id", "response_logprobs") if old_logprobs == "sampler" else {}
    if (old_logprobs == "recompute" or reference) and scores is None:
        raise AgentRLError("the loss needs old or reference log-probs: run the score stage first (scores.parquet)")
    if old_logprobs == "recompute" and scores is not None:
        old_source = _column(scores, "turn_id", "old_logprobs")
    references = _column(scores, "turn_id", "reference_logprobs") if reference and scores is not None else {}
    flat = _column(advantages, "turn_id", "advantage")
    by_token = _column(advantages, "turn_id", "token_advantages")
    signals = {}
    for turn, weight in zip(advantages["turn_id"], advantages["loss_weight"], strict=True):
        if turn not in lengths:
            raise AgentRLError(f"advantages: turn {turn} is not in the rollouts; both must come from the same rollout")
        if turn in signals:
            raise AgentRLError(f"advantages: turn {turn} occurs twice")
        if not np.isfinite(weight) or weight < 0:
            raise AgentRLError(f"advantages: the loss_weight of turn {turn} is {weight}; it must be at least 0")
        if weight > 0:
            length = lengths[turn]
            signals[turn] = Signal(
                _advantage(turn, flat.get(turn), by_token.get(turn), length),
                _tokens("old log-probs", turn, old_source.get(turn), length),
                _tokens("reference log-probs", turn, references.get(turn), length) if reference else None,
                float(weight),
            )
    return signals


def _column(frame: pd.DataFrame, key: str, value: str) -> Mapping[str, Any]:
    return dict(zip(frame[key], frame[value], strict=True)) if value in frame else {}


def _advantage(turn: str, flat: Any, by_token: Any, length: int) -> Floats:
    if isinstance(by_token, list | tuple | np.ndarray):
        return _tokens("token_advantages", turn, by_token, length)
    return _tokens("advantage", turn, np.full(length, np.nan if flat is None else flat, np.float64), length)


def _tokens(name: str, turn: str, values: Any, length: int) -> Floats:
    if not isinstance(values, list | tuple | np.ndarray):
        raise AgentRLError(f"{name} of turn {turn}: absent, but the loss needs them")
    array = np.asarray(values, np.float64)
    if array.shape != (length,):
        raise AgentRLError(f"{name} of turn {turn}: {array.size} values for {length} response tokens")
    if not np.isfinite(array).all():
        raise AgentRLError(f"{name} of turn {turn}: not all values are finite")
    return array
