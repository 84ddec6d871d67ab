"""What the losses need for each trained response, gathered from the files and checked against its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentbench_rl.config.loss import LossConfig
from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Signal:
    """Of one response of T tokens: advantage, old and reference log-probs, entropy score [T], loss weight (> 0).

    value_target, old_value: of the states before its first V tokens [V], V = T or 1. source: null for a response of
    this iteration, else where it comes from; its loss is a term of its own, with the weight `source_weight`, or, where
    that is None, a part of this iteration's. behaviour: log-probs of a replayed response under the policy that sampled
    it, for losses that move their centre [T]. policy: who is trained on it. event_id, event_size, member: the event it
    belongs to, of how many members, as which of them.
    """

    advantage: Floats
    old: Floats
    reference: Floats | None
    weight: float
    entropy_score: Floats | None = None
    value_target: Floats | None = None
    old_value: Floats | None = None
    source: str | None = None
    source_weight: float | None = 1.0
    behaviour: Floats | None = None
    policy: str = "policy"
    event_id: str = ""
    event_size: int = 1
    member: int = 0


def is_silent(signal: Signal, loss: LossConfig) -> bool:
    """Whether a response only counts: it has no advantage, and nothing else in the update has a gradient for it."""
    return loss.silent_without_advantage and signal.value_target is None and not signal.advantage.any()


def training_signals(
    rollouts: pd.DataFrame,
    scores: pd.DataFrame | None,
    advantages: pd.DataFrame,
    old_logprobs: Literal["recompute", "sampler"],
    *,
    reference: bool,
    values: bool = False,
    entropy_scores: bool = False,
) -> dict[str, Signal]:
    """Signals by turn_id, of the responses with a positive loss weight; `values` etc. tell what the losses need.

    Replayed responses bring their own old log-probs; they have no value target, and references (0) that are not read.
    Those with behaviour log-probs are scored like the others, and have the value targets that stand in `advantages`.
    Raises AgentRLError for unknown turns, absent scores, values that are not finite, and lengths that differ.
    """
    lengths = {turn: len(ids) for turn, ids in zip(rollouts["turn_id"], rollouts["response_ids"], strict=True)}
    if (old_logprobs == "recompute" or reference or values) and scores is None:
        raise AgentRLError("the loss needs log-probs or values: run the score stage first (scores.parquet)")
    told, scored, sampled = _Columns(advantages), _Columns(scores), _Columns(rollouts)
    old = sampled["response_logprobs"] if old_logprobs == "sampler" else scored["old_logprobs"]
    signals: dict[str, Signal] = {}
    for turn, weight in zip(advantages["turn_id"], advantages["loss_weight"], strict=True):
        _check_row(turn, weight, known=turn in lengths, seen=turn in signals)
        if weight == 0:
            continue
        length = lengths[turn]
        source, behaviour = told["source"].get(turn), told["behaviour_logprobs"].get(turn)
        own, moved = not isinstance(source, str), _is_list(behaviour)
        olds = old if own else scored["old_logprobs"] if moved else told["old_logprobs"]
        targets = told["value_targets"].get(turn)
        valued = values and (own or (moved and _is_list(targets)))
        target, old_value = _values(turn, targets, scored["values"].get(turn), length) if valued else (None, None)
        entropy = told["entropy_scores"].get(turn)
        signals[turn] = Signal(
            _advantage(turn, told["advantage"].get(turn), told["token_advantages"].get(turn), length),
            _tokens("old log-probs", turn, olds.get(turn), length),
            _reference(turn, scored["reference_logprobs"], length, read=own or moved) if reference else None,
            float(weight),
            _tokens("entropy_scores", turn, entropy, length) if entropy_scores else None,
            target,
            old_value,
            source if isinstance(source, str) else None,
            _weight(turn, told["source_weight"].get(turn), 1.0 if own else None, required=not own and not moved),
            _tokens("behaviour log-probs", turn, behaviour, length) if moved else None,
            *_place(turn, sampled),
        )
    return signals


class _Columns:
    """Columns of a frame as mappings by turn_id, made when they are asked for; an absent column is an empty one."""

    def __init__(self, frame: pd.DataFrame | None) -> None:
        self._frame = frame
        self._made: dict[str, Mapping[str, Any]] = {}

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._made:
            frame = self._frame
            if frame is None or name not in frame:
                return {}
            self._made[name] = dict(zip(frame["turn_id"], frame[name], strict=True))
        return self._made[name]


def _place(turn: str, sampled: _Columns) -> tuple[str, str, int, int]:
    """Policy, event, its size and the member; where the rollouts have no such columns: the policy, its own event."""
    policy, event = sampled["policy"].get(turn, "policy"), sampled["event_id"].get(turn, turn)
    return policy, event, int(sampled["event_size"].get(turn, 1)), int(sampled["member"].get(turn, 0))


def _check_row(turn: str, weight: float, *, known: bool, seen: bool) -> None:
    if not known:
        raise AgentRLError(f"advantages: turn {turn} is not in the rollouts; both must come from the same rollout")
    if seen:
        raise AgentRLError(f"advantages: turn {turn} occurs twice")
    if not np.isfinite(weight) or weight < 0:
        raise AgentRLError(f"advantages: the loss_weight of turn {turn} is {weight}; it must be at least 0")


def _advantage(turn: str, flat: Any, by_token: Any, length: int) -> Floats:
    if _is_list(by_token):
        return _tokens("token_advantages", turn, by_token, length)
    return _tokens("advantage", turn, np.full(length, np.nan if flat is None else flat, np.float64), length)


def _reference(turn: str, references: Mapping[str, Any], length: int, *, read: bool) -> Floats:
    return _tokens("reference log-probs", turn, references.get(turn), length) if read else np.zeros(length)


def _values(turn: str, targets: Any, values: Any, length: int) -> tuple[Floats, Floats]:
    """Targets, and the old values of the same states."""
    target = _targets(turn, targets, length)
    return target, _tokens("values", turn, values, length)[: len(target)]


def _targets(turn: str, targets: Any, length: int) -> Floats:
    """One target per token, or one for the state before the response; none where the response is empty."""
    if length == 0:
        return np.zeros(0)
    one = _is_list(targets) and len(targets) == 1
    return _tokens("value_targets", turn, targets, 1 if one else length)


def _weight(turn: str, weight: Any, default: float | None, *, required: bool) -> float | None:
    """The weight of a response's source, the default where the file has none."""
    absent = weight is None or np.isnan(weight)
    if absent and not required:
        return default
    if absent or not np.isfinite(weight) or weight < 0:
        raise AgentRLError(f"advantages: the source_weight of turn {turn} is {weight}; it must be at least 0")
    return float(weight)


def _is_list(values: Any) -> bool:
    return isinstance(values, list | tuple | np.ndarray)


def _tokens(name: str, turn: str, values: Any, length: int) -> Floats:
    if not _is_list(values):
        raise AgentRLError(f"{name} of turn {turn}: absent, but the loss needs them")
    array = np.asarray(values, np.float64)
    if array.shape != (length,):
        raise AgentRLError(f"{name} of turn {turn}: {array.size} values for {length} response tokens")
    if not np.isfinite(array).all():
        raise AgentRLError(f"{name} of turn {turn}: not all values are finite")
    return array
