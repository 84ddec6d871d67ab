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


def test_one_step_off_samples_without_waiting_for_the_update_before(tmp_path: Path) -> None:
    """Nor for anything else but the rollout before, where a threshold is taken of its entropies."""
    schedule = {"schedule": {"kind": "one_step_off"}}
    methods = {"ahead": RAW["algorithms"]["rloo"] | schedule, "threshold": {"base": "bpo"} | schedule}
    methods["threshold"]["topology"] = {"select": "online_threshold"}
    raw = RAW | {"algorithms": methods, "training": {"iterations": 3, "learning_rate": 1e-3}}
    output = run(tmp_path, "--dry-run", "--set", "mode=staged", raw=raw)
    found = re.findall(r"rule (\w+):\n    input: (.*)\n    output: .*?/runs/(\w+)/.*?/iteration(\d+)/", output)
    inputs = {(method, rule, int(iteration)): names for rule, names, method, iteration in found}

    def sources(method: str, rule: str) -> list[set[str]]:
        """What every iteration's job of a rule waits for, but for the panels and its own iteration."""
        return [
            set(re.findall(r"sft|iteration\d+/\w+", inputs[method, rule, number]))
            - {f"iteration{number:03d}/{stage}" for stage in ("rollout", "score", "advantage")}
            for number in range(3)
        ]

    before = [{"sft"}, {"sft"}, {"iteration000/update"}]
    assert sources("ahead", "rollout") == sources("ahead", "score") == sources("threshold", "score") == before
    assert sources("ahead", "update") == [{"sft"}, {"iteration000/update"}, {"iteration001/update"}]
    rollouts = [set(), {"iteration000/rollout"}, {"iteration001/rollout"}]
    assert sources("threshold", "rollout") == [one | other for one, other in zip(before, rollouts, strict=True)]
