"""A model of dense rewards: an MLP on the state after a turn, as a directory of reproducible bytes.

h(s, a) is a transformer's last hidden state, after the last token of the response a to the context s. What
a dense reward is the tanh of is MLP(h), in float32 or wider. Its last layer starts at 0, so that every output does.
Source: RSPO (arXiv 2607.04713, equation 5), after SPA-RL (arXiv 2505.20732).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.policies.disk import disk_errors
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.types import AgentRLError

BACKBONE, TENSORS, FACTS = "backbone", "head.safetensors", "dense_model.json"
DENSE_MODEL_VERSION = 1


class DenseModel(torch.nn.Module):
    """`language_model`: a causal LM, whose own head is not read, and `head`: the MLP on its last hidden states.

    tokenizer: of the language model. own_tokens: it is another one than the policy's.
    """

    def __init__(self, language_model: Any, tokenizer: Any, own_tokens: bool, mlp_size: int, seed: int = 0) -> None:
        super().__init__()
        self.language_model, self.tokenizer, self.own_tokens = language_model, tokenizer, own_tokens
        weight = language_model.get_output_embeddings().weight
        self._wide = wide = torch.promote_types(weight.dtype, torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden = torch.nn.Linear(weight.shape[1], mlp_size, dtype=wide, device="cpu")
            last = torch.nn.Linear(mlp_size, 1, dtype=wide, device="cpu")
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
        self.head = torch.nn.Sequential(hidden, torch.nn.GELU(), last).to(weight.device)

    @property
    def backbone(self) -> Any:
        """The transformer without its LM head."""
        return self.language_model.base_model

    @property
    def device(self) -> torch.device:
        device: torch.device = self.language_model.device
        return device

    def forward(self, states: Tensor) -> Tensor:
        """Outputs [Q] of hidden states [Q, H]."""
        with torch.autocast(states.device.type, enabled=False):
            outputs: Tensor = self.head(states.to(self._wide)).squeeze(-1)
        return outputs


def save_dense_model(model: DenseModel, directory: Path) -> None:
    """Write backbone, tokenizer, head and facts into a new directory; equal models give equal bytes.

    Raises OSError when the disk is full or refuses.
    """
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    save_policy(model.language_model, model.tokenizer, directory / BACKBONE)
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.head.state_dict().items()}
    with disk_errors(directory / TENSORS):
        save_file(tensors, directory / TENSORS)
    facts = {"version": DENSE_MODEL_VERSION, "own_tokens": model.own_tokens, "mlp_size": model.head[0].out_features}
    (directory / FACTS).write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_dense_model(directory: Path, device: str = "cpu") -> DenseModel:
    """Read what `save_dense_model` wrote, in evaluation mode.

    Raises AgentRLError when a file is missing, damaged or of a newer version, or the head belongs to another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))
        version, own_tokens, mlp_size = facts["version"], facts["own_tokens"], facts["mlp_size"]
        tensors = load_file(directory / TENSORS)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise AgentRLError(
            f"the dense reward model in {directory} is missing or damaged ({error}); delete the directory and run "
            "agentrl dense-model again"
        ) from error
    if version > DENSE_MODEL_VERSION:
        raise AgentRLError(f"{directory / FACTS}: version {version} is newer than {DENSE_MODEL_VERSION}; upgrade")
    backbone = directory / BACKBONE
    model = DenseModel(load_policy(backbone, "float32", device), load_tokenizer(backbone), own_tokens, mlp_size)
    expected = {name: value.shape for name, value in model.head.state_dict().items()}
    if {name: value.shape for name, value in tensors.items()} != expected:
        raise AgentRLError(f"{directory / TENSORS} does not fit {backbone} and {FACTS}; run agentrl dense-model again")
    model.head.load_state_dict(tensors)
    return model.eval()
