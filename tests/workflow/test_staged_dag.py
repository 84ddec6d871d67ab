"""The DAG in staged mode: which rule runs which method, and what comes before it."""

from __future__ import annotations

import re
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
LEARNED = LOOPS | {"schedule": LOOPS["schedule"] | {"dense_reward": "model"}}


def test_an_iteration_of_rounds_is_one_job_and_others_have_one_per_stage(tmp_path: Path) -> None:
    methods = {"rounds": ROUNDS, "loops": LOOPS, "learned": LEARNED, "rounds-plain": RAW["algorithms"]["grpo"]}
    staged = ("--dry-run", "--printshellcmds", "--set", "mode=staged", "--set", "processes=3")
    output = run(tmp_path, *staged, raw=RAW | {"algorithms": methods})
    jobs = planned(output)
    assert {rule: jobs[rule] for rule in ("iterate", "rollout", "score", "advantage", "update")} == {
        "iterate": 6,
        "rollout": 2,
        "score": 2,
        "advantage": 2,
        "update": 2,
    }
    assert jobs["validate"] == jobs["evaluate_test"] == 4
    assert jobs["dense_model"] == 1
    found = re.findall(r"rule iterate:\n    input: (.*)\n    output: .*?/runs/(\w+)/", output)
    assert {name for inputs, name in found if "dense_model/outputs.json" in inputs} == {"learned"}
    assert {name for _, name in found} == {"rounds", "loops", "learned"}
    shared = re.findall(r"torch\.distributed\.run --standalone --nproc-per-node 3 -m agentbench_rl ([\w-]+)", output)
    assert set(shared) == {"sft", "dense-model", "score", "update", "iterate"}
    assert not set(re.findall(r"/\S+ -m agentbench_rl ([\w-]+)", output)) & set(shared)
