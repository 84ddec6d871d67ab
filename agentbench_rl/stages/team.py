"""Policies of their own for the roles of a team: who they are, and the checkpoint that holds all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_rl.config import Experiment
from agentbench_rl.policies.loading import load_policy, load_tokenizer, policy_path, save_policy
from agentbench_rl.rollout.workflows import open_workflow, policy_of
from agentbench_rl.stages.files import link
from agentbench_rl.training.checkpoint import TrainerState, load_trainer_state, save_trainer_state

if TYPE_CHECKING:
    import pandas as pd

#: Name of a policy that has none beside it.
SINGLE = "policy"


def own_policies(experiment: Experiment) -> tuple[str, ...]:
    """Names of the policies of a team's roles, in the order of the workflow; none where there is a single policy."""
    team = experiment.team
    if team is None or team.policies == "shared":
        return ()
    roles = open_workflow(team, experiment.environment).instructions
    return tuple(policy_of(team, role) for role in roles)


@dataclass(frozen=True)
class Checkpoint:
    """The policies that an update begins with, and the states of their optimizers.

    policy, trainer: their directories; trainer: null before the first update. names: of a team's policies, which have a
    subdirectory each; none: a single policy, which has none.
    """

    policy: Path
    trainer: Path | None
    names: tuple[str, ...]

    def models(self, rollouts: pd.DataFrame, device: str) -> dict[str, Any]:
        """The policies that have rows, by name; the single policy in any case."""
        sampled = set(rollouts["policy"])
        names = [name for name in self.names if name in sampled] if self.names else [SINGLE]
        # A step of 1e-6 is lost in bfloat16 weights: training.dtype is that of the computation alone.
        return {name: load_policy(policy_path(self.policy, name), "float32", device) for name in names}

    def states(self, names: Iterable[str]) -> dict[str, TrainerState]:
        """States of their optimizers, where they have begun."""
        return {name: load_trainer_state(self._place(self.trainer, name)) for name in names if self.trainer}

    def write(self, scratch: Path, models: Mapping[str, Any], states: Mapping[str, TrainerState]) -> None:
        """Write the next checkpoint: `policy/` and `trainer/`; policies without rows stay what they are."""
        for name, model in models.items():
            tokenizer = load_tokenizer(policy_path(self.policy, name))
            save_policy(model, tokenizer, self._place(scratch / "policy", name))
            save_trainer_state(self._place(scratch / "trainer", name), states[name])
        for name in set(self.names) - set(models):
            _carry(policy_path(self.policy, name), scratch / "policy" / name)
            if self.trainer is None:
                save_trainer_state(scratch / "trainer" / name, TrainerState())
            else:
                _carry(self.trainer / name, scratch / "trainer" / name)

    def _place(self, directory: Path, name: str) -> Path:
        return directory / name if self.names else directory


def _carry(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=link)
