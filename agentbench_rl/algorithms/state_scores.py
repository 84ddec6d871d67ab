"""S(s) = exp(-lambda(t) p(s)) behind a gate; n(s) = ceil(G S(s)) responses; the reward of a step from s to s'.

p = N_success / (N_total + epsilon), lambda(t) = alpha ln t. The gate is open while N_fail < max_failures or
p > min_success. R = w (new s') + (0.5 - w) (Phi(s) - Phi(s')) + 0.5 (success), w = 0.5 exp(-novelty_decay N_total(s)).
Source: 3SPO (arXiv 2606.09961, equations 1 to 3). Published code leaves t, the key of a state, what is new and what a
leaf's score is open; `config.topology.StateScore` names the readings. The gate is a boolean of its own: a score may
underflow, which must not close a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentbench_rl.algorithms.state_table import StateTable
from agentbench_rl.config.topology import Expand, StateScore

_EPSILON = 1e-6
#: n is not raised by what a rounded product lies above a whole number.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Transition:
    """One response at a state; path: keys from the root to that state. leaf: the episode ended, `success` or not."""

    path: Sequence[str]
    next_key: str
    leaf: bool
    success: bool
    reward: float


@dataclass(frozen=True)
class StateScores:
    """What a table that nobody changes says of states in one iteration (from 0)."""

    table: StateTable
    settings: StateScore
    iteration: int

    def success_rate(self, key: str) -> float:
        """p, in [0, 1]."""
        return min(max(self.table.success(key) / (self.table.total(key) + _EPSILON), 0.0), 1.0)

    def ungated(self, key: str) -> float:
        """exp(-lambda p): 1 for an unknown state, towards 0 for a mastered one."""
        clock = {
            "iteration": 1.0 + self.iteration,
            "trajectories": 1.0 + self.table.trajectories,
            "visits": 1.0 + self.table.total(key),
        }[self.settings.clock]
        return math.exp(-self.settings.alpha * math.log(clock) * self.success_rate(key))

    def is_open(self, key: str, *, root: bool = False) -> bool:
        """Whether the state may be expanded; root: it is the first state of its task."""
        settings = self.settings
        waits = self.iteration < settings.warmup_iterations
        if (root and not settings.gate_root) or (waits and self.table.success_average <= 2.0 * settings.min_success):
            return True
        failures = self.table.total(key) - self.table.success(key)
        return failures < settings.max_failures or self.success_rate(key) > settings.min_success

    def score(self, key: str, *, root: bool = False) -> float:
        """S: 0 where the gate is closed."""
        return self.ungated(key) if self.is_open(key, root=root) else 0.0

    def allocation(self, key: str, topology: Expand, *, root: bool = False) -> int:
        """Responses to sample at a state: 0 where the gate is closed, else 1 to max_actions."""
        if topology.allocation == "uniform":
            return topology.max_actions
        if not self.is_open(key, root=root):
            return 0
        return max(1, math.ceil(topology.max_actions * self.ungated(key) - _ROUNDING))

    def novelty_weight(self, key: str) -> float:
        """w, in [0, 0.5]."""
        if self.settings.fixed_weight is not None:
            return self.settings.fixed_weight
        return 0.5 * math.exp(-self.settings.novelty_decay * self.table.total(key))

    def is_new(self, step: Transition) -> bool:
        """Whether the step is paid for novelty."""
        return {
            "trajectory": step.next_key not in step.path,
            "changed": step.next_key != step.path[-1],
            "unseen": not self.table.total(step.next_key),
            "none": False,
        }[self.settings.novelty]

    def reward(self, step: Transition) -> float:
        """R of a step, before penalties; in [-0.5, 1]."""
        key, root = step.path[-1], step.path[0]
        success = step.reward if self.settings.success == "score" else float(step.success)
        match self.settings.potential:
            case "none":
                before = after = 0.0
            case "gated":
                before = self.score(key, root=key == root)
                after = self.score(step.next_key, root=step.next_key == root)
            case "ungated":
                before = self.ungated(key)
                after = float(not step.success) if step.leaf else self.ungated(step.next_key)
        return step_reward(self.novelty_weight(key), self.is_new(step), before, after, success)


def step_reward(weight: float, new: bool, before: float, after: float, success: float) -> float:
    """w (new) + (0.5 - w) (before - after) + 0.5 success (equation 2)."""
    return weight * new + (0.5 - weight) * (before - after) + 0.5 * success
