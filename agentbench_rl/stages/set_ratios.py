"""Set ratios of an episode's events under another policy than the one that sampled them, as SRPO's loss has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.losses.set_clip import EventLoss, Events, event_loss, length_factor
from agentbench_rl.config.loss import SetClip
from agentbench_rl.evaluation.conversation import Event
from agentbench_rl.policies.loading import load_policy, policy_path
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.training.scoring import TokenScores, policy_measure, score_tokens
from agentbench_rl.types import score_schema

_BATCH_TOKENS = 4096


def set_ratios(policy: Path, directory: Path, rows: pd.DataFrame, events: Sequence[Event]) -> dict[str, str]:
    """What to show of the ratio of every event without a missing member, by event_id: its value, and whether it clips.

    rows: of one episode in the rollout `directory`. Old log-probs are the trainer's where the iteration has them, and
    otherwise the sampler's; the loss is that of the iteration's update if it is SRPO's, and otherwise SRPO's default.
    """
    whole = [event for event in events if len(event.members) == event.size]
    if not whole:
        return {}
    loss = _loss(directory, rows, whole, policy)
    told = zip(whole, loss.ratio, loss.clipped, strict=True)
    return {event.event_id: f"   ρ {ratio:.4f}{' (clipped)' * bool(clipped)}" for event, ratio, clipped in told}


def _loss(directory: Path, rows: pd.DataFrame, events: Sequence[Event], policy: Path) -> EventLoss:
    manifest = read_manifest(directory.parent / "update")
    used = manifest["config"].get("algorithm.loss", {}) if manifest else {}
    settings = SetClip.model_validate(used if used.get("kind") == "set_clip" else {})
    new, old = _logprobs(policy, rows), _old_logprobs(directory.parent / "score" / "scores.parquet", rows)
    turns = rows["turn_id"]
    change = np.array([np.sum(new[turn] - old[turn], dtype=np.float64) for turn in turns])
    tokens = np.array([float(max(len(old[turn]), 1)) for turn in turns])
    frame = pd.DataFrame({"ratio": change * length_factor(tokens, settings), "tokens": tokens})
    sums = frame.groupby(rows["event_id"].to_numpy()).sum().loc[[event.event_id for event in events]]
    return event_loss(
        Events(
            log_ratio=sums["ratio"].to_numpy(),
            size=np.array([float(event.size) for event in events]),
            tokens=sums["tokens"].to_numpy(),
            advantage=np.array([event.advantage or 0.0 for event in events]),
            weight=np.ones(len(events)),
        ),
        settings,
    )


def _logprobs(policy: Path, rows: pd.DataFrame) -> TokenScores:
    """Log-probs of every response under the policies of a directory, each under the one that its row names."""
    found: TokenScores = {}
    longest = int((rows["prompt_ids"].map(len) + rows["response_ids"].map(len)).max())
    budget = max(_BATCH_TOKENS, longest)
    for name, own in rows.groupby("policy"):
        model = load_policy(policy_path(policy, str(name)))
        scores = score_tokens(model, policy_measure(model), rows, budget, turns=set(own["turn_id"]))
        found |= scores.get("logprobs", {})
    return found


def _old_logprobs(path: Path, rows: pd.DataFrame) -> TokenScores:
    """Log-probs of every response under the policy that sampled it."""
    scores = read_frame(path, score_schema()) if path.exists() else None
    trainers = scores is not None and bool(scores["old_logprobs"].notna().any())
    frame, column = (scores, "old_logprobs") if scores is not None and trainers else (rows, "response_logprobs")
    return {turn: np.asarray(values) for turn, values in zip(frame["turn_id"], frame[column], strict=True)}
