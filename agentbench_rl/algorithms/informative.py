"""Which groups tell anything about their episodes (DAPO, arXiv 2503.14476, section 3.2): those whose returns differ."""

from __future__ import annotations

import numpy as np

from agentbench_rl.types import AgentRLError


def informative_groups(returns: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Whether the raw returns of each group differ: bool [G], from the return [E] and the group code [E] of episodes.

    A group of one tells nothing. Raises AgentRLError for a return that is not finite.
    """
    if not np.isfinite(returns).all():
        raise AgentRLError("a return is null or not finite: groups can be compared by known returns only")
    lowest = np.full(int(groups.max(initial=-1)) + 1, np.inf)
    highest = -lowest
    np.minimum.at(lowest, groups, returns)
    np.maximum.at(highest, groups, returns)
    return lowest < highest
