"""Prints how many bytes an update takes at most beyond what the process takes before: `update_peak.py POLICY CASE`.

CASE: JSON with settings of `training`, and `sequences`, `prompt` and `response`: how many there are in each of two
optimizer steps, and tokens that they share and that they are trained on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from agentbench_rl.config import TrainingConfig
from agentbench_rl.config.loss import TokenClip
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.training.sharding import recompute_blocks
from agentbench_rl.training.trainer import update_policy
from tests.training.models import tiny_model

STEPS = 2


def main(policy: Path, case: dict[str, Any]) -> None:
    """An update of a tiny model loads all libraries; then that of the policy is watched."""
    torch.set_num_threads(1)
    update(tiny_model("llama", torch.float32), {"sequences": 2, "prompt": 4, "response": 4})
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest value begins anew
    update(load_policy(policy), case)
    print(status("VmHWM") - before)


def update(model: Any, case: dict[str, Any]) -> None:
    training = TrainingConfig(iterations=1, learning_rate=1e-5, minibatches=STEPS, **case.get("training", {}))
    if training.gradient_checkpointing:
        recompute_blocks(model)
    rows = rollouts(STEPS * case["sequences"], case["prompt"], case["response"])
    advantages = {"turn_id": rows["turn_id"], "event_id": rows["turn_id"], "loss_weight": 1.0, "advantage": 1.0}
    frame = pd.DataFrame(advantages | {"token_advantages": None})
    update_policy({"policy": model}, {}, rows, None, frame, training, TokenClip(kl_coefficient=0.0), "sampler", 0, 0)


def rollouts(count: int, prompt: int, response: int) -> pd.DataFrame:
    shared = np.arange(prompt) % 50
    return pd.DataFrame(
        {
            "turn_id": [f"t{number}" for number in range(count)],
            "parent_id": None,
            "extends_parent": False,
            "prompt_ids": [shared] * count,
            "response_ids": [(np.arange(response) + number) % 50 for number in range(count)],
            "response_logprobs": [np.full(response, -4.0)] * count,
        }
    )


def status(name: str) -> int:
    """Bytes of a line of this process's status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
