"""The smallest experiment that runs every stage: tiny policy, small households, two methods, two iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from agentbench_rl.config import Experiment, Json
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.evaluate import evaluate_start, evaluate_test
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.train import train
from agentbench_rl.types import silent

#: `rloo` pays for invalid turns, so that even an unskilled policy has advantages other than zero.
RAW: Json = {
    "name": "tiny",
    "environment": {
        "base": "alfworld",
        "max_turns": 6,
        "generator": {
            "receptacles": [5, 6],
            "objects": [4, 5],
            "floor_plans": 4,
            "task_types": ["pick_and_place_simple"],
        },
    },
    "model": {
        "base": "tiny",
        "architecture": {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "vocabulary": 320},
    },
    "panels": {
        "train": {"split": "train", "size": 8},
        "validation": {"split": "valid_seen", "size": 2},
        "test": {"split": "valid_unseen", "size": 3},
    },
    "demos": {"episodes": 8},
    "sft": {"steps": 20, "batch_tokens": 1024, "learning_rate": 1e-2, "warmup_steps": 2},
    "rollout": {"tasks_per_iteration": 4, "batch_slots": 5, "max_context_tokens": 512, "max_response_tokens": 12},
    "training": {"iterations": 2, "learning_rate": 1e-3, "minibatches": 2},
    "evaluation": {"every": 2, "resamples": 50},
    "algorithms": {
        "grpo": {"base": "grpo", "topology": {"group_size": 2}},
        "rloo": {"base": "rloo", "topology": {"group_size": 2}, "reward": {"invalid_action_penalty": 0.1}},
    },
    "tracking": {"enabled": False},
}


def tiny(**changes: Any) -> Experiment:
    """The experiment, with whole sections replaced."""
    return load_experiment(RAW | changes)


def manifest(directory: Path) -> Json:
    """The manifest of a stage that must have finished."""
    found = read_manifest(directory)
    assert found is not None
    return found


def read(directory: Path, name: str) -> pd.DataFrame:
    """A table of a stage."""
    return pd.read_parquet(directory / f"{name}.parquet")


def run_training(experiment: Experiment, layout: Layout, *algorithms: str) -> None:
    """Make the start policy and train the methods."""
    prepare_start(experiment, layout, lambda _: silent)
    for algorithm in algorithms:
        iterations = range(experiment.training.iterations)
        train(experiment, layout, algorithm, 0, iterations, lambda *_: silent, lambda *_: None)


def run_everything(experiment: Experiment, root: Path) -> Layout:
    """Run all stages before the comparison."""
    layout = Layout(root)
    run_training(experiment, layout, *experiment.algorithms)
    for panel in ("validation", "test"):
        evaluate_start(experiment, layout, panel)
    for algorithm in experiment.algorithms:
        evaluate_test(experiment, layout, algorithm, 0)
    return layout


def lasting_files(root: Path) -> dict[str, bytes]:
    """Contents of all files that identical runs share: neither seconds, hosts and times nor locks."""
    volatile = {"timings.parquet", "cost.csv", "manifest.json", ".lock"}
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in volatile)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
