"""The critic: a linear value head on a transformer's last hidden states, as a directory of reproducible bytes.

v(s) = w . h(s) + b in float32 or wider; w and b start at 0, so that every value does. Its backbone is a copy of the
start policy's (`separate`), or the states are the policy's own (`shared`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from agentbench_rl.policies.disk import disk_errors
from agentbench_rl.types import AgentRLError

TENSORS, FACTS = "critic.safetensors", "critic.json"
CRITIC_VERSION = 1
Backbone = Literal["separate", "shared"]


class Critic(torch.nn.Module):
    """`head`, and `backbone`: a transformer without its LM head, or None where the states are the policy's."""

    def __init__(self, backbone: Any, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.backbone = backbone
        wide = torch.promote_types(dtype, torch.float32)
        # Not initialised at random: the global generator is left alone.
        self.head: Any = torch.nn.Linear(hidden_size, 1, dtype=wide, device="meta").to_empty(device="cpu")
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.head.weight.device
        return device

    def forward(self, states: Tensor) -> Tensor:
        """Values [T] of hidden states [T, H]."""
        with torch.autocast(states.device.type, enabled=False):
            values: Tensor = self.head(states.to(self.head.weight.dtype)).squeeze(-1)
        return values


def build_critic(policy: Any, backbone: Backbone) -> Critic:
    """A critic whose values are all 0; a `separate` one takes the policy's transformer away as its own."""
    weight = policy.get_output_embeddings().weight
    own = policy.base_model if backbone == "separate" else None
    return Critic(own, weight.shape[1], weight.dtype).to(weight.device).eval()


def open_critic(policy: Any, backbone: Backbone, directory: Path | None) -> Critic:
    """The critic in `directory`, or, without one, that of a run's start, where `policy` is the start policy."""
    return build_critic(policy, backbone) if directory is None else load_critic(directory, policy, backbone)


def save_critic(critic: Critic, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write weights and facts into a new directory; equal critics give equal bytes.

    weights: all of them, of a critic that is sharded; null: it has them itself.
    Raises OSError when the disk is full or refuses.
    """
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    found = critic.state_dict() if weights is None else weights
    tensors = {name: value.detach().cpu().contiguous() for name, value in found.items()}
    with disk_errors(directory / TENSORS):
        save_file(tensors, directory / TENSORS)
    facts = {"version": CRITIC_VERSION, "backbone": "shared" if critic.backbone is None else "separate"}
    facts |= {"tensors": len(tensors)}
    (directory / FACTS).write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_critic(directory: Path, policy: Any, backbone: Backbone) -> Critic:
    """Read what `save_critic` wrote, into the architecture of `policy` (whose transformer it takes when `separate`).

    Raises AgentRLError when a file is missing, damaged or of a newer version, and for another architecture's critic.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))
        version, found, count = facts["version"], facts["backbone"], facts["tensors"]
        tensors = load_file(directory / TENSORS)
        if len(tensors) != count:
            raise ValueError(f"{TENSORS} holds {len(tensors)} tensors, {FACTS} says {count}")
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise AgentRLError(
            f"the critic in {directory} is missing or damaged ({error}); delete the directory and run again"
        ) from error
    if version > CRITIC_VERSION:
        raise AgentRLError(f"{directory / FACTS}: version {version} is newer than {CRITIC_VERSION}; upgrade")
    if found != backbone:
        raise AgentRLError(f"{directory} holds a critic with a {found} backbone, critic.backbone is {backbone}")
    critic = build_critic(policy, backbone)
    expected = {name: value.shape for name, value in critic.state_dict().items()}
    shapes = {name: value.shape for name, value in tensors.items()}
    if expected != shapes:
        wrong = min(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        raise AgentRLError(f"the critic in {directory} is of another model: {wrong} is missing, unknown or reshaped")
    critic.load_state_dict(tensors)
    return critic
