"""The DAG in staged mode: which rule runs which method."""

from __future__ import annotations

from pathlib import Path

from dag import planned, run
from tiny_experiment import RAW

ROUNDS = {
    "source": "3SPO",
    "topology": {"kind": "expand"},
    "schedule": {"kind": "post_step"},
    "advantage": {"estimator": "state_score"},
}
LOOPS = {
    "source": "RSPO",
    "topology": {"group_size": 2},
    "schedule": {"kind": "reward_swap", "share": 0.25},
    "advantage": {"estimator": "group_mean"},
    "loss": {"kind": "moved_centre"},
}


def test_an_iteration_of_rounds_is_one_job_and_others_have_one_per_stage(tmp_path: Path) -> None:
    raw = RAW | {"algorithms": {"rounds": ROUNDS, "loops": LOOPS, "rounds-plain": RAW["algorithms"]["grpo"]}}
    output = run(tmp_path, "--dry-run", "--set", "mode=staged", raw=raw)
    jobs = planned(output)
    assert {rule: jobs[rule] for rule in ("iterate", "rollout", "score", "advantage", "update")} == {
        "iterate": 4,
        "rollout": 2,
        "score": 2,
        "advantage": 2,
        "update": 2,
    }
    assert jobs["validate"] == jobs["evaluate_test"] == 3
