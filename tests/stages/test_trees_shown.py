"""Trees of a real run in the comparison, the report and the terminal, and what was explored."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import RAW, run_everything
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.cli.common import numbers
from agentbench_rl.evaluation.trees import telling_tree
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.compare import compare
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.report import report

CHANGES = {
    "algorithms": {
        "grpo": {"base": "grpo", "topology": {"group_size": 2}},
        "bpo": {"base": "bpo", "topology": {"points": 1, "siblings": 3, "spacing": 0}},
        "3spo": {"base": "3spo", "topology": {"max_actions": 3, "max_responses": 6}},
    },
    "rollout": RAW["rollout"] | {"tasks_per_iteration": 2},
    "training": RAW["training"] | {"iterations": 2},
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    experiment = load_experiment(RAW | CHANGES)
    layout = run_everything(experiment, tmp_path_factory.mktemp("shown") / "tiny")
    compare(experiment, layout)
    report(experiment, layout)
    return layout


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_runs_states_are_the_union_over_its_iterations(compared: Layout) -> None:
    table = pd.read_csv(compared.tables / "exploration.csv").set_index("method")
    assert table.index.tolist() == ["grpo", "bpo", "3spo"]
    for method, row in table.iterrows():
        files = [compared.stage(str(method), 0, i, "rollout") / "rollouts.parquet" for i in range(2)]
        turns = pd.concat([pd.read_parquet(file) for file in files])
        assert row["distinct_states"] == len(set(turns["state_key"]) | set(turns["next_state_key"]))
        assert row["responses"] == len(turns)
        assert row["sampled_tokens"] == turns["response_ids"].map(len).sum()
    assert table.loc["bpo", "branch_points"] == 1.0
    assert table.loc[["grpo", "3spo"], "branch_points"].isna().all()
    assert table.loc["3spo", "mean_score"] > 0.0


def test_the_shape_of_trees_is_logged_as_metrics(compared: Layout) -> None:
    manifest = json.loads((compared.stage("bpo", 0, 1, "rollout") / "manifest.json").read_text(encoding="utf-8"))
    names = {"branch_points", "branch_depth", "branch_entropy", "distinct_states"}
    assert {f"rollout/{name}" for name in names} | {"cost/rollout/forks"} <= set(numbers("rollout", manifest))
    compared_manifest = json.loads((compared.tables / "manifest.json").read_text(encoding="utf-8"))
    assert numbers("compare", compared_manifest)["compare/bpo/seed0/distinct_states"] > 1


def test_the_report_holds_the_tree_that_show_draws(compared: Layout, tmp_path: Path) -> None:
    rollout = compared.stage("bpo", 0, 1, "rollout")
    told = telling_tree(*(pd.read_parquet(rollout / f"{name}.parquet") for name in ("rollouts", "episodes")))
    assert told is not None
    shown(rollout, told, "--svg", tmp_path / "tree.svg")
    picture = (tmp_path / "tree.svg").read_text(encoding="utf-8")
    assert (compared.tables / "tree_bpo.svg").read_text(encoding="utf-8") == picture
    assert not (compared.tables / "tree_grpo.svg").exists()
    page = (compared.report / "report.html").read_text(encoding="utf-8")
    assert picture[picture.index("<style>") :].strip() in page
    assert "A tree of bpo" in page
    assert "A tree of 3spo" in page
    assert "Mean state score of expanded states" in page
    assert "optimizer steps each (3spo: updates between the rounds of an iteration)" in page


def test_an_episode_that_branched_off_is_read_from_the_start_of_its_task(compared: Layout) -> None:
    rollout = compared.stage("bpo", 0, 1, "rollout")
    episodes = pd.read_parquet(rollout / "episodes.parquet")
    branched = episodes[episodes["episode_id"].str.endswith(".b2")].iloc[0]
    steps = [line.split("]")[0] for line in shown(rollout, branched["episode_id"]).splitlines() if line[:1] == "["]
    assert steps == [f"[{step}" for step in range(branched["length"])]
