"""Policies of their own for the roles of a team: who they are, and the checkpoint that holds all of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_rl.config import Experiment, TrainingConfig
from agentbench_rl.policies.loading import ADAPTER, BASE, load_policy, load_tokenizer, policy_path, save_policy
from agentbench_rl.rollout.workflows import open_workflow, policy_of
from agentbench_rl.stages.files import link
from agentbench_rl.training.adapters import add_adapters, merged, save_adapter
from agentbench_rl.training.checkpoint import TrainerState, load_trainer_state, restore_weights, save_trainer_state
from agentbench_rl.training.sharding import full_weights, recompute_blocks
from agentbench_rl.training.world import World
from agentbench_rl.types import SINGLE

if TYPE_CHECKING:
    import pandas as pd


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
    subdirectory each; none: a single policy, which has none. base: the policies that the trainer's adapters belong on;
    null: `policy`.
    """

    policy: Path
    trainer: Path | None
    names: tuple[str, ...]
    base: Path | None
    training: TrainingConfig
    world: World

    def models(self, rollouts: pd.DataFrame, device: str, seed: int) -> dict[str, Any]:
        """The policies that have rows, by name, not sharded yet; the single policy in any case. seed: of adapters."""
        sampled = set(rollouts["policy"])
        names = [name for name in self.names if name in sampled] if self.names else [SINGLE]
        return {name: self._model(name, device, seed) for name in names}

    def _model(self, name: str, device: str, seed: int) -> Any:
        model = self._base(name, device if self.world.mesh is None else "cpu")  # its shards move to the device
        if self.training.lora is not None:
            add_adapters(model, self.training.lora, seed)
        if self.training.gradient_checkpointing:
            recompute_blocks(model)
        return model

    def _base(self, name: str, device: str) -> Any:
        # A step of 1e-6 is lost in bfloat16 weights: training.dtype is that of the computation alone.
        return load_policy(policy_path(self.base or self.policy, name), "float32", device)

    def states(self, models: Mapping[str, Any]) -> dict[str, TrainerState]:
        """States of their optimizers, where they have begun; adapters get the weights that they had."""
        if self.trainer is None:
            return {}
        states = {name: load_trainer_state(self._place(self.trainer, name), model) for name, model in models.items()}
        for name, state in states.items():
            restore_weights(models[name], state)
        return states

    def write(self, scratch: Path, models: Mapping[str, Any], states: Mapping[str, TrainerState]) -> None:
        """Write the next checkpoint: `policy/` and `trainer/`; policies without rows stay what they are.

        The first process writes the policies, every process its part of the states.
        """
        for name, model in models.items():
            save_trainer_state(self._place(scratch / "trainer", name), states[name], self.world)
            self._write_policy(name, model, self._place(scratch / "policy", name))
        if self.world.leads:
            self._carry_others(scratch, models)

    def _write_policy(self, name: str, model: Any, directory: Path) -> None:
        """The whole policy, by the first process; adapters are added to it, and stand in it beside their base."""
        lora, whole = self.training.lora, model
        weights = None if self.world.mesh is None and lora is None else full_weights(model, self.world)
        if not self.world.leads:
            return
        if weights is not None:
            whole = self._base(name, "cpu")
            whole.load_state_dict(weights if lora is None else merged(model, weights))
        save_policy(whole, load_tokenizer(policy_path(self.policy, name)), directory)
        if weights is not None and lora is not None:
            save_adapter(model, weights, lora, directory / ADAPTER)
            _carry(policy_path(self.base or self.policy, name), directory / BASE)

    def _carry_others(self, scratch: Path, models: Mapping[str, Any]) -> None:
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
