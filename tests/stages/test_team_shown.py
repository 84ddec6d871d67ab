"""A team's run as a person sees it: conversations with sets, advantages and ratios, tables, and the report."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny_experiment import RAW, run_everything
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages import set_ratios
from agentbench_rl.stages.compare import compare
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.record import record_experiment
from agentbench_rl.stages.report import report
from agentbench_rl.training.scoring import policy_measure, score_tokens


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """An iteration of SRPO with three solvers and an aggregator, who hardly ever say something well-formed."""
    experiment = load_experiment(
        RAW
        | {
            "environment": {"base": "math", "max_invalid_turns": 3},
            "team": {"workflow": "mathematics", "members": 3, "rounds": 1},
            "panels": {name: {"split": name, "size": 2} for name in ("train", "validation", "test")},
            "demos": {"episodes": 8, "expert": "scripted", "failure_rate": 0.0},
            "rollout": RAW["rollout"] | {"tasks_per_iteration": 2},
            "training": RAW["training"] | {"iterations": 1, "minibatches": 1},
            "evaluation": RAW["evaluation"] | {"samples_per_task": 2},
            "algorithms": {"srpo": {"base": "srpo", "topology": {"group_size": 3}}},
        }
    )
    root = tmp_path_factory.mktemp("team") / "tiny"
    record_experiment(experiment, Layout(root))
    made = run_everything(experiment, root)
    compare(experiment, made)
    report(experiment, made)
    return made


def rollout(layout: Layout) -> Path:
    return layout.stage("srpo", 0, 0, "rollout")


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_an_episode_is_a_conversation_of_sets_with_one_advantage_each(layout: Layout) -> None:
    lines = shown(rollout(layout), "0").splitlines()
    headings = [line for line in lines if line.startswith("[")]
    assert [re.sub(r"   A [+-]\d\.\d\d", "", line) for line in headings] == [
        "[0] propose, round 0, K = 3",
        "[1] aggregate, round 1, K = 1",
    ]
    named = [line.split()[0] for line in lines if re.match(r"  \w", line)]
    assert named == ["solver1", "solver2", "solver3", "aggregator"]
    advantages = pd.read_parquet(layout.stage("srpo", 0, 0, "advantage") / "advantages.parquet")
    assert f"A {advantages['advantage'].iloc[0]:+.2f}" in headings[0]
    assert "Trees" not in shown(rollout(layout))


def test_ratios_are_those_of_the_loss_and_one_before_the_update(layout: Layout) -> None:
    before = shown(rollout(layout), "0", "--policy", layout.sft / "policy")
    assert before.count("ρ 1.0000") == 2
    update = layout.stage("srpo", 0, 0, "update")
    after = shown(rollout(layout), "0", "--policy", update / "policy")
    ratios = [float(found) for found in re.findall(r"ρ (\d+\.\d+)", after)]
    turns = pd.read_parquet(rollout(layout) / "rollouts.parquet")
    model = load_policy(update / "policy")
    new = score_tokens(model, policy_measure(model), turns, 1024)["logprobs"]
    scores = pd.read_parquet(layout.stage("srpo", 0, 0, "score") / "scores.parquet").set_index("turn_id")
    change = [float((new[turn] - scores.loc[turn, "old_logprobs"]).sum()) for turn in turns["turn_id"][:4]]
    assert ratios == pytest.approx([np.exp(sum(change[:3]) / 3**0.5), np.exp(change[3])], abs=1e-4)
    assert ratios != [1.0, 1.0]


def test_ratios_are_shown_of_episodes_with_rows_of_any_length(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (rollout(layout), "0", "--policy", layout.sft / "policy")
    expected = shown(*arguments)
    monkeypatch.setattr(set_ratios, "_BATCH_TOKENS", 1)
    assert shown(*arguments) == expected


def test_ratios_are_refused_for_episodes_of_a_single_agent_and_without_an_episode(
    layout: Layout, tmp_path: Path
) -> None:
    turns = pd.read_parquet(rollout(layout) / "rollouts.parquet")
    turns[turns["member"] == 0].drop(columns=["team_agent", "team_round"]).to_parquet(tmp_path / "rollouts.parquet")
    pd.read_parquet(rollout(layout) / "episodes.parquet").to_parquet(tmp_path / "episodes.parquet")
    for arguments, said in ((["0"], "this episode is of a single agent"), ([], "--policy needs an episode of a team")):
        result = CliRunner().invoke(app, ["show", str(tmp_path), *arguments, "--policy", str(layout.sft / "policy")])
        assert result.exit_code == 1
        assert said in " ".join(result.output.split())


def test_sets_are_not_drawn_as_forks(layout: Layout) -> None:
    result = CliRunner().invoke(app, ["show", str(rollout(layout)), "0", "--tree"])
    assert result.exit_code == 1
    assert "are no forks" in result.output


def test_a_missing_member_is_shown_as_missing(layout: Layout, tmp_path: Path) -> None:
    turns = pd.read_parquet(rollout(layout) / "rollouts.parquet")
    turns.drop(index=turns.index[0]).to_parquet(tmp_path / "rollouts.parquet")
    pd.read_parquet(rollout(layout) / "episodes.parquet").to_parquet(tmp_path / "episodes.parquet")
    assert "[0] propose, round 0, K = 3   (1 missing)" in shown(tmp_path, "0")


def test_set_sizes_and_dropped_events_are_metrics(layout: Layout) -> None:
    sampled, credited = (read_manifest(layout.stage("srpo", 0, 0, name)) for name in ("rollout", "advantage"))
    assert sampled is not None
    assert credited is not None
    assert sampled["metrics"]["set_size"] == credited["metrics"]["set_size"] == 2.0
    assert credited["metrics"]["dropped_events"] == 0.0
    assert {"advantage_std/propose", "advantage_std/aggregate"} <= set(credited["metrics"])


def test_costs_of_an_answer_are_counted_by_member(layout: Layout) -> None:
    table = pd.read_csv(layout.tables / "utility.csv").set_index("method")
    turns = pd.read_parquet(layout.test("srpo", 0) / "rollouts.parquet")
    assert table.loc["srpo", "calls"] == 4.0
    assert table.loc["srpo", "set_size"] == 2.0
    assert table.loc["srpo", "sampled_tokens"] == np.mean([turns["response_ids"].map(len).sum() / 4])
    summary = pd.read_csv(layout.tables / "summary.csv")
    assert "pass_at_2" in set(summary["metric"])


def test_the_report_has_a_team_episode_to_read(layout: Layout) -> None:
    page = (layout.report / "report.html").read_text(encoding="utf-8")
    assert "[0] propose, round 0, K = 3" in page
    assert "<b>members</b>" in page
    assert "Cost of an answer" in page
