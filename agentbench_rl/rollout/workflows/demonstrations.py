"""What demonstrations of all workflows share."""

from __future__ import annotations

import random

from agentbench_rl.rollout.workflows.grammar import STOP

#: How often a member of a set is shown to be wrong, so that those who act after it learn to doubt.
MISTAKES = 0.3


def demonstrated_route(agents: int, enough: bool, rng: random.Random) -> str:
    """A router's response: it stops when memory holds what the team needs, or names a random set of one or more."""
    if enough:
        return f"<route>{STOP}</route>"
    chosen = sorted(rng.sample(range(1, agents + 1), rng.randint(1, agents)))
    return f"<route>{','.join(map(str, chosen))}</route>"
