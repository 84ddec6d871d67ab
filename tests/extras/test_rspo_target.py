"""`make rspo-all`: every method that it names trains three iterations at tiny sizes, and is compared at equal cost."""

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

from agentbench_rl.config import Experiment, Json
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.presets import load_algorithm, load_experiment
from agentbench_rl.stages import dense_model
from agentbench_rl.stages.compare import compare
from agentbench_rl.stages.report import report

pytestmark = pytest.mark.extras
REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = [
    "model={base: tiny, architecture: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, vocabulary: 400}}",
    *("panels.train.size=32", "panels.validation.size=2", "panels.test.size=3", "demos.episodes=8"),
    *("sft.steps=10", "sft.batch_tokens=1024", "sft.threads=1", "rollout.tasks_per_iteration=8"),
    *("training.iterations=3", "evaluation.resamples=50", "seeds=[0]"),
    *("dense_model={episodes: 8, steps: 3, batch_episodes: 4, mlp_size: 8}", "tracking.enabled=false"),
]


def commands() -> list[list[str]]:
    """The runs of `make rspo-all`, as arguments."""
    make = ["make", "-n", "rspo-all"]
    printed = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    lines = re.sub(r"\\\n", " ", printed).splitlines()
    return [shlex.split(line) for line in lines if "agentrl run" in line]


def experiment(command: list[str]) -> Experiment:
    """The experiment of a run, tiny."""
    name = command[command.index("-e") + 1]
    name = str(REPOSITORY / name) if name.endswith(".yaml") else name
    overrides = [value for option, value in pairwise(command) if option == "--set"]
    groups = [f"algorithms.{method}.topology.group_size=2" for method in load_experiment(name, overrides).algorithms]
    return load_experiment(name, [*overrides, *SIZES, *groups])


def some_succeed(episodes: pd.DataFrame) -> pd.DataFrame:
    """The episodes as if every other one had succeeded: so unskilled a policy never does, which teaches nothing."""
    return episodes.assign(**{"return": np.resize([0.0, 1.0], len(episodes))})


def test_the_target_has_every_host_and_every_ablation_in_one_override() -> None:
    methods = experiment(commands()[-1]).algorithms
    hosts = {"grpo", "gigpo", "ppo"}
    assert hosts | {f"rspo-{host}" for host in hosts} <= set(methods)
    plain = load_algorithm("rspo-grpo").schedule
    changed: dict[str, Json] = {}
    for name in set(methods) - hosts - {f"rspo-{host}" for host in hosts}:
        schedule = methods[name].schedule
        assert isinstance(schedule, RewardSwap)
        changed[name] = {key: value for key, value in schedule if value != getattr(plain, key)}
    assert changed == {
        "rspo-random": {"selection": "random"},
        "rspo-variance": {"selection": "variance", "unit": "group"},
        "rspo-history": {"source": "history"},
        "rspo-outcome": {"source": "outcome"},
        "rspo-share": {"share": 0.25},
        "rspo-period": {"period": 5},
        "rspo-noise": {"dense_noise": 0.1},
        "rspo-model": {"dense_reward": "model"},
    }


@pytest.mark.parametrize("command", commands()[1:], ids=lambda command: str(command[command.index("-e") + 1]))
def test_a_run_of_the_target_trains_and_is_compared_at_equal_cost(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    monkeypatch.setattr(dense_model, "labelled", lambda episodes, path: some_succeed(episodes))
    config = experiment(command)
    layout = run_everything(config, tmp_path / "results")
    compare(config, layout)
    report(config, layout)
    summary = pd.read_csv(layout.tables / "summary.csv")
    success = summary[summary["metric"] == "success"].set_index("method")
    assert set(success.index) == {"sft", *config.algorithms}
    assert np.isfinite(success["mean"]).all()
    pairs = pd.read_csv(layout.tables / "at_equal_cost.csv").set_index(["cost", "method", "baseline"])
    count = len(config.algorithms)
    assert len(pairs) == 3 * count * (count - 1) // 2
    assert np.isfinite(pairs["mean"]).all()
    row = pairs.loc[("updates", "rspo-grpo", "grpo")]
    assert tuple(row[["method_updates", "baseline_updates"]]) == (3, 3)
    # A loop plays 3 x 7 x 2 dense, 14 x 2 collected and 3 x 7 x 2 fresh episodes; the host 3 x 8 x 2.
    assert pairs.loc[("episodes", "rspo-grpo", "grpo"), "budget"] == 48
    curves = pd.read_csv(layout.tables / "curves.csv").set_index(["method", "update"])
    assert curves.loc[("rspo-grpo", 3), "played_episodes"] == 112
