"""Stage `update`: the algorithm-blind trainer, from advantages to the next policy and trainer state."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

from agentbench_rl.config import Experiment, Json, stage_config, validated_iterations
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, prune, run_stage
from agentbench_rl.stages.score import needs_scores
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.training.checkpoint import load_trainer_state, save_trainer_state
from agentbench_rl.training.trainer import UpdateResult, update_policy
from agentbench_rl.types import Progress, advantage_schema, rollout_schema, score_schema, silent


def update(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Write `policy/`, `trainer/` and `metrics.jsonl` (one line per optimizer step) of one iteration."""
    start = layout.start(algorithm, seed, iteration)
    inputs = {"policy": start / "policy"}
    inputs["rollouts"] = layout.stage(algorithm, seed, iteration, "rollout") / "rollouts.parquet"
    inputs["advantages"] = layout.stage(algorithm, seed, iteration, "advantage") / "advantages.parquet"
    if needs_scores(experiment, algorithm):
        inputs["scores"] = layout.stage(algorithm, seed, iteration, "score") / "scores.parquet"
    if iteration > 0:
        inputs["trainer"] = start / "trainer"

    def body(scratch: Path) -> StageReport:
        use_threads(experiment.threads)
        # A step of 1e-6 is lost in bfloat16 weights: training.dtype is that of the computation alone.
        model = load_policy(inputs["policy"], "float32", experiment.device)
        result = update_policy(
            model,
            load_trainer_state(inputs["trainer"]) if "trainer" in inputs else None,
            read_frame(inputs["rollouts"], rollout_schema()),
            read_frame(inputs["scores"], score_schema()) if "scores" in inputs else None,
            read_frame(inputs["advantages"], advantage_schema()),
            experiment.training,
            experiment.algorithms[algorithm].loss,
            experiment.algorithms[algorithm].old_logprobs,
            seed,
            iteration,
            on_step=_teller(progress, experiment.training.epochs * experiment.training.minibatches),
        )
        save_policy(model, load_tokenizer(inputs["policy"]), scratch / "policy")
        (scratch / "trainer").mkdir()
        save_trainer_state(scratch / "trainer", result.state)
        lines = [json.dumps({"step": step, **metrics}, sort_keys=True) for step, metrics in enumerate(result.steps)]
        (scratch / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return _report(result)

    manifest = run_stage(
        "update",
        layout.stage(algorithm, seed, iteration, "update"),
        config=stage_config(experiment, "update", algorithm),
        inputs=inputs,
        seeds={"seed": seed, "iteration": iteration},
        body=body,
    )
    if experiment.training.checkpoints == "validated" and iteration > 0:
        kept = iteration - 1 in validated_iterations(experiment)
        prune(start, ["trainer"] if kept else ["policy", "trainer"])
    return manifest


def _teller(progress: Progress, total: int) -> Callable[..., None]:
    done = count(1)
    return lambda *_: progress(next(done), total)


def _report(result: UpdateResult) -> StageReport:
    """Means over the optimizer steps, and the tokens they trained on and processed."""
    names = sorted({name for step in result.steps for name in step})
    means = {}
    for name in names:
        values = [step[name] for step in result.steps if name in step]
        means[name] = sum(values) / len(values)
    totals = {
        name: sum(step.get(name, 0.0) for step in result.steps)
        for name in ("optimizer_steps", "trained_tokens", "processed_tokens")
    }
    return StageReport(ledger={**totals, "update_seconds": sum(result.seconds)}, metrics=means)
