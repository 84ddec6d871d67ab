"""Branch points of a tree: boundaries of its backbone from which fresh continuations are played.

top-M: in the order of H descending, t ascending, every t with |pos_t - pos_t'| >= spacing for all t' taken before; the
last action is no candidate. Source: BPO (arXiv 2607.14171, section 4.2). `online_threshold` takes, in the order of
time, every t with H_t >= threshold: whether t is taken is then known before its action is sampled, as the unbiased
estimators need it, and so the last action is a candidate there. `every`: VinePPO (arXiv 2410.01679).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import numpy as np

from agentbench_rl.config.topology import Branch
from agentbench_rl.types import AgentRLError


def branch_points(
    entropy: np.ndarray,
    position: np.ndarray,
    eligible: np.ndarray,
    settings: Branch,
    threshold: float,
    tree_id: str,
) -> list[int]:
    """Chosen steps of a finished backbone of T turns, ascending; fewer than asked for where there are no more.

    entropy [T]: nats at the boundary before each turn, NaN where it is not known: chosen by its entropy, such a turn
    never is. position [T]: tokens sampled before each turn. eligible [T]: whether it can be forked there. tree_id:
    what is random depends on nothing else.
    """
    if settings.select == "every":
        return [int(step) for step in np.flatnonzero(eligible)]
    count = points_of_tree(settings.points, tree_id)
    online = settings.select == "online_threshold"
    last = len(entropy) - (0 if online else 1)
    candidates = [step for step in range(last) if eligible[step]]
    return _spaced(_order(candidates, entropy, settings, threshold, count, tree_id), position, settings.spacing, count)


def points_of_tree(points: float, tree_id: str) -> int:
    """Branch points of one tree: `points` rounded up with the probability of its fraction, down otherwise."""
    whole = math.floor(points)
    return whole + (random.Random(f"points/{tree_id}").random() < points - whole)


def quantile_threshold(entropy: np.ndarray, backbones: int, points: float) -> float:
    """The threshold that `points` boundaries of a backbone reach, on average over the backbones it is taken of.

    entropy [boundaries of all backbones]: nats, NaN where it is not known. Raises AgentRLError where none is known.
    """
    known = np.sort(entropy[~np.isnan(entropy)])[::-1]
    if not len(known):
        raise AgentRLError(
            "topology.select online_threshold: the iteration before has no boundary_entropy to take a threshold of; "
            "sample with a sampler that returns entropies, or choose topology.select: random"
        )
    rank = min(max(round(points * backbones), 1), len(known))
    return float(known[rank - 1])


def _order(
    candidates: list[int], entropy: np.ndarray, settings: Branch, threshold: float, count: int, tree_id: str
) -> list[int]:
    """The candidates in the order in which they are taken."""
    known = [step for step in candidates if not math.isnan(entropy[step])]
    match settings.select:
        case "top_m":
            return sorted(known, key=lambda step: (-entropy[step], step))
        case "lowest":
            return sorted(known, key=lambda step: (entropy[step], step))
        case "online_threshold":
            return [step for step in known if entropy[step] >= threshold]
        case "random":
            return random.Random(f"order/{tree_id}").sample(candidates, len(candidates))
        case "equal":
            places = [int((part + 0.5) * len(candidates) / count) for part in range(count)]
            return [candidates[place] for place in dict.fromkeys(places)] if candidates else []
    raise AgentRLError(f"topology.select {settings.select}: takes no points in an order")


def _spaced(order: Iterable[int], position: np.ndarray, spacing: int, count: int) -> list[int]:
    """The first `count` steps of the order that keep their distance from all that were taken before, ascending."""
    taken: list[int] = []
    for step in order:
        if len(taken) == count:
            break
        if all(abs(int(position[step]) - int(position[other])) >= spacing for other in taken):
            taken.append(step)
    return sorted(taken)
