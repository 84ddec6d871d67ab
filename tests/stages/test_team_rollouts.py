"""Teams through the stages that sample, on the smallest experiments: files, ledger, repeatability."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.stages.evaluate import evaluate_start
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.types import AGENT, TEAM_ROUND, AgentRLError, episode_schema, rollout_schema, silent

METHOD: Json = {
    "source": "SRPO",
    "advantage": {"estimator": "event_zscore"},
    "loss": {"kind": "set_clip"},
    "topology": {"kind": "team", "group_size": 2},
}
WORLDS: dict[str, Json] = {
    "mathematics": {"base": "math"},
    "search": {"base": "search", "max_turns": 9, "generator": {"entities": 40, "hops": [1, 2]}},
    "propose_act": RAW["environment"],
}


def experiment(workflow: str, orchestration: str, slots: int = 7, **environment: Any) -> Experiment:
    house = workflow == "propose_act"
    names = RAW["panels"] if house else {name: {"split": name} for name in RAW["panels"]}
    return tiny(
        environment=WORLDS[workflow] | {"max_invalid_turns": 9} | environment,
        team={"workflow": workflow, "orchestration": orchestration, "members": 3, "rounds": 1 if house else 2},
        panels={name: {"split": names[name]["split"], "size": 2} for name in names},
        demos={
            "episodes": 2,
            "failure_rate": 0.0,
            "expert": "walkthrough" if house else "scripted",
        },
        sft={"steps": 1},
        rollout=RAW["rollout"] | {"tasks_per_iteration": 2, "batch_slots": slots, "max_context_tokens": 768},
        algorithms={"srpo": METHOD},
    )


@pytest.mark.parametrize(
    ("workflow", "orchestration"), [("mathematics", "mixed"), ("search", "routed"), ("propose_act", "fixed")]
)
def test_a_team_plays_groups_and_panels(tmp_path: Path, workflow: str, orchestration: str) -> None:
    asked, layout = experiment(workflow, orchestration), Layout(tmp_path / "run")
    check_experiment(asked)
    prepare_start(asked, layout, lambda _: silent)
    other = Layout(shutil.copytree(layout.root, tmp_path / "again"))
    rollout(asked, layout, "srpo", 0, 0)
    evaluate_start(asked, layout, "test")
    place = layout.stage("srpo", 0, 0, "rollout")
    for directory, groups, size in ((place, 2, 2), (layout.start_evaluation("test"), 2, 1)):
        turns = read_frame(directory / "rollouts.parquet", rollout_schema())
        episodes = read_frame(directory / "episodes.parquet", episode_schema())
        assert episodes.groupby("group_id").size().tolist() == [size] * groups
        assert (turns.groupby("event_id").size() == turns.groupby("event_id")["event_size"].first()).all()
        assert (episodes["length"] == turns.groupby("tree_id", sort=False)["event_id"].nunique().to_numpy()).all()
        manifest = read_manifest(directory)
        assert manifest is not None
        assert manifest["ledger"]["model_calls"] == len(turns)
        assert manifest["ledger"]["sampled_tokens"] == turns["response_ids"].map(len).sum()
    fields = pq.read_schema(place / "rollouts.parquet")
    assert {AGENT, TEAM_ROUND} <= set(fields.names)

    rollout(experiment(workflow, orchestration, slots=4), other, "srpo", 0, 0)
    pd.testing.assert_frame_equal(
        pd.read_parquet(place / "rollouts.parquet"),
        pd.read_parquet(other.stage("srpo", 0, 0, "rollout") / "rollouts.parquet"),
        check_exact=False,
        atol=1e-5,
    )


def test_a_team_without_slots_or_an_environment_for_it_is_refused_before_anything_runs() -> None:
    with pytest.raises(AgentRLError, match=r"rollout\.batch_slots"):
        check_experiment(experiment("mathematics", "fixed", slots=2))
    with pytest.raises(AgentRLError, match=r"environment\.calculator"):
        check_experiment(experiment("mathematics", "fixed", calculator=True))
