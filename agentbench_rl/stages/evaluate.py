"""Stage `evaluate`: every task of a panel exactly k times with one policy; the one evaluator of the package."""

from __future__ import annotations

from pathlib import Path

from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.rollout.episode import specs_of_groups
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, require, run_stage
from agentbench_rl.stages.panel import load_panel, panel_inputs
from agentbench_rl.stages.sampling import PolicyRef, play, write_rollouts
from agentbench_rl.types import Progress, silent


def evaluate(
    experiment: Experiment, layout: Layout, policy: PolicyRef, panel: str, out: Path, progress: Progress = silent
) -> Json:
    """Play each task of `panel` `evaluation.samples_per_task` times.

    Ids, and so the random numbers, depend on the panel and the evaluation seed alone: policies are compared on the
    same tasks with the same random numbers.
    """
    settings = experiment.evaluation
    specs = specs_of_groups(
        load_panel(layout.panels, panel), settings.samples_per_task, f"evaluation{settings.seed}.{panel}"
    )

    def body(scratch: Path) -> StageReport:
        played = play(experiment, policy, layout.panels / "games", specs, settings.temperature, progress)
        return write_rollouts(played, scratch)

    return run_stage(
        "evaluate",
        out,
        config=stage_config(experiment, "evaluate"),
        inputs={"policy": policy.path} | panel_inputs(layout.panels, panel),
        seeds={"version": policy.version},
        body=body,
    )


def evaluate_start(experiment: Experiment, layout: Layout, panel: str, progress: Progress = silent) -> Json:
    """Evaluate the start policy that all methods share."""
    policy = PolicyRef(layout.sft / "policy", "policy", 0)
    return evaluate(experiment, layout, policy, panel, layout.start_evaluation(panel), progress)


def evaluate_validation(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Evaluate the policy that an iteration's update wrote on the validation panel."""
    policy = PolicyRef(layout.stage(algorithm, seed, iteration, "update") / "policy", "policy", iteration + 1)
    out = layout.stage(algorithm, seed, iteration, "validation")
    return evaluate(experiment, layout, policy, "validation", out, progress)


def evaluate_test(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, progress: Progress = silent
) -> Json:
    """Evaluate a run's last policy on the test panel."""
    last = experiment.training.iterations - 1
    update = layout.stage(algorithm, seed, last, "update")
    require(update, "update", stage_config(experiment, "update", algorithm))
    policy = PolicyRef(update / "policy", "policy", last + 1)
    return evaluate(experiment, layout, policy, "test", layout.test(algorithm, seed), progress)
