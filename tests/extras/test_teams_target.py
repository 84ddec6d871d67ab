"""`make teams-all`: every experiment that it names trains three iterations at tiny sizes, and is compared."""

from __future__ import annotations

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny_experiment import run_everything

from agentbench_rl.config import Experiment
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.compare import compare

pytestmark = pytest.mark.extras
REPOSITORY = Path(__file__).resolve().parents[2]
ITERATIONS = 3
SIZES = [
    "model.architecture={kind: tiny, hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, vocabulary: 400}",
    *("panels.train.size=8", "panels.validation.size=2", "panels.test.size=3", "demos.episodes=8"),
    *("sft.steps=10", "sft.batch_tokens=1024", "sft.threads=1", "rollout.tasks_per_iteration=2"),
    *("rollout.max_context_tokens=2048", "environment.max_turns=9", f"training.iterations={ITERATIONS}"),
    *("evaluation.every=3", "evaluation.resamples=50", "seeds=[0]", "tracking.enabled=false"),
]


def commands() -> list[list[str]]:
    """The runs of `make teams-all`, as arguments."""
    make = ["make", "-n", "teams-all"]
    printed = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    lines = re.sub(r"\\\n", " ", printed).splitlines()
    return [shlex.split(line) for line in lines if "agentrl run" in line]


def experiment(command: list[str]) -> Experiment:
    """The experiment of a run, tiny."""
    name = command[command.index("-e") + 1]
    overrides = [value for option, value in pairwise(command) if option == "--set"]
    groups = [f"algorithms.{method}.topology.group_size=2" for method in load_experiment(name, overrides).algorithms]
    return load_experiment(name, [*overrides, *SIZES, *groups])


def test_the_target_covers_what_was_promised() -> None:
    experiments = [experiment(command) for command in commands()]
    teams = [each.team for each in experiments if each.team is not None]
    assert len({each.name for each in experiments}) == len(experiments) == len(teams)
    assert {team.workflow for team in teams} == {"mathematics", "search", "propose_act"}
    assert {team.orchestration for team in teams} == {"fixed", "mixed", "routed"}
    assert {team.members for team in teams} >= {1, 2, 4}
    assert {team.policies for team in teams} == {"shared", "per_role"}
    methods = {name for each in experiments for name in each.algorithms}
    assert methods == {"srpo", "grpo-team", "dr-mas", "gspo-team", "srpo-sum", "srpo-mean"}


@pytest.mark.parametrize("command", commands(), ids=lambda command: " ".join(command[2:5]))
def test_a_run_of_the_target_trains_and_is_compared(command: list[str], tmp_path: Path) -> None:
    config = experiment(command)
    layout = run_everything(config, tmp_path / "results")
    compare(config, layout)
    summary = pd.read_csv(layout.tables / "summary.csv")
    success = summary[summary["metric"] == "success"].set_index("method")
    assert set(success.index) == {"sft", *config.algorithms}
    assert np.isfinite(success["mean"]).all()
    assert (success["sampled_tokens"].drop("sft") > 0).all()
