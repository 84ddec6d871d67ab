"""A_e = (R_e - mean) / (std + epsilon) among the events of one task and kind, std over n - 1; all members carry A_e.

R_e = scale * R(tau) + what the members of e alone are charged or paid, summed over them; statistics count events, not
responses. A kind is an event_type, or an event_type and round of the workflow (AT-GRPO, arXiv 2510.11062). `agent`
compares single responses, each with its own charge, with those of the same agent (Dr. MAS, arXiv 2602.08847).
Source: SRPO (arXiv 2609.08452, equation 6); the paper leaves group, return and std open.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.events import Events, events_of
from agentbench_rl.algorithms.frames import codes
from agentbench_rl.algorithms.kernels import group_advantage, group_statistics
from agentbench_rl.algorithms.rewards import local_terms
from agentbench_rl.config.advantage import EventZscore
from agentbench_rl.types import AGENT, TEAM_ROUND

_KIND = {"event_type": ["event_type"], "event_type_and_round": ["event_type", TEAM_ROUND], "agent": [AGENT]}


def event_zscore(batch: Batch, settings: EventZscore) -> Credit:
    """Advantage of every row [rows], and its weight: 0 for members of incomplete events, which enter no statistic.

    Diagnostics: complete and dropped events, their mean size, groups of one, std of the advantages by event type or
    agent. Raises AgentRLError for an event that two versions of a policy acted in.
    """
    rollouts, events = batch.rollouts, events_of(batch.rollouts)
    trained = events.complete[events.event]
    charges = local_terms(rollouts, batch.reward, batch.iteration)
    compared = np.flatnonzero(trained) if settings.group == "agent" else events.lead[events.complete]
    if settings.group != "agent":
        order = np.argsort(charges)  # a sum must not depend on the order of the rows
        charges = np.bincount(events.event[order], charges[order])[events.event]
    values = (batch.per_row(batch.episode_scores) + charges)[compared]
    kinds = rollouts[["group_id", *_KIND[settings.group]]].iloc[compared]
    groups = codes(*(kinds[name] for name in kinds))
    everyone = np.ones(len(compared), dtype=bool)
    advantage = group_advantage(values, groups, everyone, singleton=settings.singleton, epsilon=settings.epsilon)
    of_row = np.zeros(len(rollouts))
    of_row[compared] = advantage
    if settings.group != "agent":
        of_row = np.where(trained, of_row[events.lead[events.event]], 0.0)
    label = rollouts[AGENT if settings.group == "agent" else "event_type"].iloc[compared]
    diagnostics = _diagnostics(events) | {
        "singleton_event_groups": float((np.bincount(groups) == 1).sum()),
        **{f"advantage_std/{name}": std for name, std in _spreads(advantage, label).items()},
    }
    return Credit(row_advantage=of_row, row_weight=trained.astype(np.float64), diagnostics=diagnostics)


def _diagnostics(events: Events) -> dict[str, float]:
    sizes = events.size[events.complete]
    return {
        "events": float(len(sizes)),
        "dropped_events": float((~events.complete).sum()),
        "set_size": float(sizes.mean()) if len(sizes) else 0.0,
    }


def _spreads(advantage: np.ndarray, label: pd.Series) -> dict[str, float]:
    """Standard deviation of the advantages of each label, by its name."""
    numbers, names = pd.factorize(label)
    statistics = group_statistics(advantage, numbers, np.ones(len(numbers), dtype=bool), population=True)
    return dict(sorted(zip(map(str, names), statistics.std.tolist(), strict=True)))
