"""One optimizer step: gradient norm, clip, AdamW; or, where something is not finite, none, which is counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from agentbench_rl.training.checkpoint import TrainerState, make_optimizer, optimizer_moments, trained_parameters
from agentbench_rl.training.sharding import full
from agentbench_rl.training.world import World
from agentbench_rl.types import AgentRLError

MAX_CONSECUTIVE_SKIPS = 3
Metrics = dict[str, float]


class NonFiniteError(Exception):
    """What was not finite, and where."""


def agree(faults: list[str], world: World) -> None:
    """Raise NonFiniteError in all processes when one of them found a fault."""
    found = [fault for part in world.gather(faults) for fault in part]
    if found:
        raise NonFiniteError(found[0])


@dataclass
class Trainee:
    """A module, its optimizer and how far it has come; `prefix` stands before the names of its metrics."""

    module: Any
    optimizer: torch.optim.AdamW
    state: TrainerState
    clip: float
    prefix: str
    rate_setting: str
    #: Those that are trained. A sharded module shows other ones while its weights are gathered.
    parameters: dict[str, torch.nn.Parameter]

    def clip_gradient(self) -> float:
        """Scale the gradient to a norm of at most `clip`; returns the norm before."""
        norm = float(full(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.clip)))
        if not math.isfinite(norm):
            raise NonFiniteError(f"the {self.prefix}gradient norm is {norm}")
        return norm

    def count(self, fault: str, where: str) -> Metrics:
        """Count a step, or one that was skipped for a fault; raises AgentRLError at the third skip in a row."""
        state = self.state
        if fault:
            self.state = replace(state, skipped=state.skipped + 1, consecutive_skips=state.consecutive_skips + 1)
        else:
            self.state = replace(state, steps=state.steps + 1, consecutive_skips=0)
        if self.state.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
            raise AgentRLError(
                f"{self.state.consecutive_skips} optimizer steps in a row were not finite; the last one in {where}: "
                f"{fault}. Lower {self.rate_setting}, or look at the rewards, log-probs and values of these turns"
            )
        return {f"{self.prefix}optimizer_steps": float(not fault), f"{self.prefix}skipped_steps": float(bool(fault))}

    def reached(self) -> TrainerState:
        """The state to go on from."""
        frozen = any(not value.requires_grad for value in self.module.parameters())
        weights = {name: value.detach() for name, value in self.parameters.items()} if frozen else {}
        return replace(self.state, moments=optimizer_moments(self.parameters, self.optimizer), weights=weights)


def trainee(
    module: Any,
    state: TrainerState,
    learning_rate: float,
    weight_decay: float,
    clip: float,
    owner: str = "",
    rate_setting: str = "training.learning_rate",
) -> Trainee:
    """The single policy's trainee, or that of an `owner` (`critic`, a team's policy), whose metrics bear its name.

    rate_setting: what to lower when its steps are not finite.
    """
    parameters = trained_parameters(module)
    optimizer = make_optimizer(parameters, state, learning_rate, weight_decay)
    return Trainee(module, optimizer, state, clip, f"{owner}_" if owner else "", rate_setting, parameters)


def attempt(trainees: Sequence[Trainee], accumulate: Callable[[], Metrics], where: str) -> Metrics:
    """Step all trainees on the gradients that `accumulate` adds, or none of them if anything is not finite.

    Returns what `accumulate` returned (nothing of a skipped step), gradient norms and counts of steps.
    """
    metrics: Metrics = {}
    fault = ""
    for one in trainees:
        one.optimizer.zero_grad(set_to_none=True)
    try:
        metrics = accumulate()
        metrics |= {f"{one.prefix}gradient_norm": one.clip_gradient() for one in trainees}
        for one in trainees:
            one.optimizer.step()
    except NonFiniteError as error:
        metrics, fault = {}, str(error)
    for one in trainees:
        one.optimizer.zero_grad(set_to_none=True)
        metrics |= one.count(fault, where)
    return metrics
