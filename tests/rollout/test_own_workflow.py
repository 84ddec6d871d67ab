"""A user's workflow: the example of docs/teams.md, and what users can do wrong around it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes import FakeEnvironment, World, specs
from pydantic import ValidationError
from team_world import Plan, play_team, say_once
from tiny_experiment import run_everything, tiny

from agentbench_rl.config import Experiment, stage_config
from agentbench_rl.config.environment import AlfworldEnvironment
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.rollout.workflows import open_workflow
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.types import AGENT, AgentRLError

PAGE = (Path(__file__).parents[2] / "docs" / "teams.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
TEAM = TeamConfig(workflow="plan_act:PlanAct")
HOUSE = AlfworldEnvironment(name="alfworld", max_turns=9)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of the page, which can be imported."""
    (tmp_path / "plan_act.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "plan_act.py"
    sys.modules.pop("plan_act", None)


def experiment(**team: Any) -> Experiment:
    return tiny(
        team={"workflow": "plan_act:PlanAct", "policies": "per_role"} | team,
        panels={
            "train": {"split": "train", "size": 2},
            "validation": {"split": "valid_seen", "size": 2},
            "test": {"split": "valid_unseen", "size": 2},
        },
        demos={"episodes": 2},
        sft={"steps": 3, "batch_tokens": 512},
        rollout={"tasks_per_iteration": 2, "batch_slots": 4, "max_context_tokens": 512, "max_response_tokens": 8},
        training={"iterations": 1, "learning_rate": 1e-3},
        algorithms={"srpo": {"base": "srpo", "topology": {"group_size": 2}}},
    )


def test_it_is_as_short_as_promised() -> None:
    assert len(CODE.splitlines()) < 60


def test_it_plays(example: Path) -> None:
    said = ("…", "first +6", "+6", "then win", "win")
    rollouts, sampler = play_team(
        lambda event, *_: said[event],
        open_workflow(TEAM, HOUSE),
        lambda: FakeEnvironment(World()),
        HOUSE,
        specs("a"),
        team=TEAM,
    )
    assert rollouts.endings == {"success": 1}
    assert [row[AGENT] for row in rollouts.turns] == ["planner", "planner", "actor", "planner", "actor"]
    assert "> +6\na: 1\nPlan: then win" in sampler.prompts[rollouts.turns[-1]["turn_id"]]


def test_it_runs_through_all_stages(example: Path, tmp_path: Path) -> None:
    layout = run_everything(experiment(), tmp_path / "results")
    demos = pd.read_parquet(layout.demos / "demos.parquet")
    assert demos["observation"].str.contains("Plan: ").all()
    rows = pd.read_parquet(layout.stage("srpo", 0, 0, "rollout") / "rollouts.parquet")
    assert "planner" in set(rows["policy"])
    assert list((layout.root / "evaluation").rglob("episodes.parquet"))


def test_results_are_out_of_date_when_its_code_changes(example: Path) -> None:
    def of_team() -> Any:
        return [stage_config(experiment(), stage)["team"] for stage in ("demos", "sft", "evaluate")]

    before = of_team()
    assert of_team() == before
    assert "code" not in TeamConfig(workflow="search").identity()
    example.write_text(CODE.replace("in one line", "briefly"), encoding="utf-8")
    assert not any(now == then for now, then in zip(of_team(), before, strict=True))


@pytest.mark.parametrize(
    ("workflow", "code", "message"),
    [
        ("no_such_module:PlanAct", CODE, "no_such_module:PlanAct cannot be loaded: .* PYTHONPATH"),
        ("plan_act:Planner", CODE, "plan_act:Planner cannot be loaded"),
        ("plan_act:Memory", CODE, "a Memory is no workflow, it has no instructions, largest_set, start"),
        (
            "plan_act:PlanAct",
            CODE.replace("def commit", "def committed"),
            "a PlanAct is no workflow, it has no commit$",
        ),
        (
            "plan_act:PlanAct",
            CODE.replace("(self, team: TeamConfig,", "(self,"),
            "is not made with the settings of team",
        ),
        ("plan_act:PlanAct", CODE.replace('"planner": ', '"policy": '), "has the role 'policy'"),
        ("plan_act:PlanAct", CODE.replace('"planner": ', '"a planner": '), "has the role 'a planner'"),
        (
            "plan_act:PlanAct",
            CODE.replace("largest_set = 1", "largest_set = 0"),
            "has the largest_set 0, not 1 or more",
        ),
        ("plan_act:PlanAct", CODE.replace('!= "fixed"', '== "fixed"'), "PlanAct knows only fixed"),
    ],
)
def test_a_wrong_one_is_explained_before_anything_runs(example: Path, workflow: str, code: str, message: str) -> None:
    example.write_text(code, encoding="utf-8")
    with pytest.raises(AgentRLError, match=message):
        check_experiment(experiment(workflow=workflow))


def test_a_name_without_a_class_is_refused() -> None:
    with pytest.raises(ValidationError, match="workflow"):
        TeamConfig(workflow="plan_act")


class Careless(Plan):
    def moves(self, active: Any, outputs: Any) -> Any:
        return super().moves(replace(active, members=active.members[:1]), outputs[:1])


class Forgetful(Plan):
    def start(self, observation: str) -> Any:
        return object()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Careless([["a", "b"]]), "reads 1 moves of the outputs of 2 members"),
        (Forgetful([["a"]]), "a object, has no repr that tells what it holds.*frozen dataclass"),
    ],
)
def test_one_that_breaks_the_contract_in_play_is_named(plan: Plan, message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        play_team(say_once, plan, lambda: FakeEnvironment(World()), HOUSE, specs("a"))
