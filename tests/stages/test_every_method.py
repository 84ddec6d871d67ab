"""Every shipped method trains: three iterations on the tiny experiment, and no number that is not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_experiment import RAW, run_training

from agentbench_rl.config import Experiment
from agentbench_rl.presets import load_algorithm, load_experiment, preset_names
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.types import advantage_schema, silent

ITERATIONS = 3
#: The start policy of RAW hardly ever succeeds; a price of malformed turns gives every method something to learn from.
PRICE = {"reward": {"invalid_action_penalty": 0.1}}
#: Three episodes per task; three responses at three states of a searched tree.
TOPOLOGY = {
    "chains": {"group_size": 3},
    "branch": {"points": 1, "siblings": 3, "spacing": 0},
    "grow": {"trees": 1, "expansions": 2},
    "entropy_branch": {"initial": 2, "leaves": 3},
    "expand": {"max_actions": 3, "max_responses": 9},
    "team": {"group_size": 3},
}
#: What methods of teams need beside it.
TEAM = {
    "environment": {"base": "math", "max_invalid_turns": 3},
    "team": {"workflow": "mathematics", "members": 2, "rounds": 1},
    "panels": {name: {"split": name, "size": 3} for name in ("train", "validation", "test")},
    "demos": {"episodes": 8, "expert": "scripted", "failure_rate": 0.0},
}


def experiment(name: str) -> Experiment:
    kind = load_algorithm(name).topology.kind
    topology = TOPOLOGY[kind]
    return load_experiment(
        RAW
        | (TEAM if kind == "team" else {})
        | {
            "algorithms": {name: {"base": name, "topology": topology, **PRICE}},
            "rollout": RAW["rollout"] | {"tasks_per_iteration": 3},
            "training": RAW["training"] | {"iterations": ITERATIONS, "checkpoints": "all"},
        }
    )


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Panels, demonstrations and start policy, made once for single agents and once for teams."""

    @cache
    def made(method: str) -> Path:
        root = tmp_path_factory.mktemp("methods") / "tiny"
        prepare_start(experiment(method), Layout(root), lambda _: silent)
        return root

    return lambda name: made("grpo-team" if experiment(name).team else "grpo")


@pytest.mark.parametrize("name", preset_names("algorithms"))
def test_a_method_trains_three_iterations_in_finite_numbers(
    name: str, starts: Callable[[str], Path], tmp_path: Path
) -> None:
    layout = Layout(tmp_path / "tiny")
    layout.root.mkdir()
    for part in ("panels", "demos", "sft"):
        (layout.root / part).symlink_to(starts(name) / part)
    run_training(experiment(name), layout, name)
    steps = 0.0
    for iteration in range(ITERATIONS):
        for stage in ("rollout", "advantage", "update"):
            manifest = json.loads((layout.stage(name, 0, iteration, stage) / "manifest.json").read_text())
            assert all(map(math.isfinite, manifest["metrics"].values())), (stage, manifest["metrics"])
        steps += manifest["ledger"]["optimizer_steps"]
        assert manifest["metrics"]["skipped_steps"] == 0
        frame = read_frame(layout.stage(name, 0, iteration, "advantage") / "advantages.parquet", advantage_schema())
        assert len(frame)
    before = load_file(layout.sft / "policy" / "model.safetensors")
    after = load_file(layout.stage(name, 0, ITERATIONS - 1, "update") / "policy" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in after.values())
    assert steps > 0
    assert any(not torch.equal(before[key], after[key]) for key in before)
