"""Stage `score`: old and reference log-probs of every sampled token, computed by the trainer's own forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.stages.files import read_frame, write_rows
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.training.scoring import score_rollouts
from agentbench_rl.types import Progress, rollout_schema, score_schema, silent

#: Policies by the name of their input, and the column of their log-probs.
_COLUMNS = {"policy": "old_logprobs", "reference": "reference_logprobs"}


def needs_scores(experiment: Experiment, algorithm: str) -> bool:
    """Whether a method's update reads `scores.parquet`."""
    method = experiment.algorithms[algorithm]
    return method.old_logprobs == "recompute" or method.loss.kl_coefficient > 0


def score(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Score one iteration's rollouts under the policy that sampled them and under the start policy."""
    method = experiment.algorithms[algorithm]
    sampled = layout.stage(algorithm, seed, iteration, "rollout") / "rollouts.parquet"
    inputs = {"rollouts": sampled, "policy": layout.start(algorithm, seed, iteration) / "policy"}
    if method.loss.kl_coefficient > 0:
        inputs["reference"] = layout.sft / "policy"

    def body(scratch: Path) -> StageReport:
        use_threads(experiment.threads)
        rollouts = read_frame(sampled, rollout_schema())
        training, columns = experiment.training, {}
        names = [name for name in _COLUMNS if name in inputs]
        for part, name in enumerate(names):
            model = load_policy(inputs[name], "float32", experiment.device)
            columns[_COLUMNS[name]] = score_rollouts(
                model,
                rollouts,
                training.micro_batch_tokens,
                training.dtype,
                training.packing,
                _part(progress, part, len(names)),
            )
        turn_ids = rollouts["turn_id"].tolist()
        rows = [{"turn_id": turn} | {name: columns[name][turn] for name in columns} for turn in turn_ids]
        write_rows(scratch / "scores.parquet", rows, score_schema())
        return StageReport(metrics=agreement(rollouts, columns["old_logprobs"]))

    return run_stage(
        "score",
        layout.stage(algorithm, seed, iteration, "score"),
        config=stage_config(experiment, "score", algorithm),
        inputs=inputs,
        body=body,
    )


def _part(progress: Progress, part: int, parts: int) -> Progress:
    """Tell `progress` of one of several equal parts."""
    return lambda done, total: progress(part * total + done, parts * total)


def agreement(rollouts: pd.DataFrame, scored: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest and mean absolute difference between the sampler's and the trainer's log-probs of the same tokens."""
    differences = [
        np.abs(np.asarray(sampled, dtype=np.float64) - scored[turn])
        for turn, sampled in zip(rollouts["turn_id"], rollouts["response_logprobs"], strict=True)
    ]
    flat = np.concatenate(differences) if differences else np.zeros(0)
    if not len(flat):
        return {"logprob_difference_max": 0.0, "logprob_difference_mean": 0.0}
    return {"logprob_difference_max": float(flat.max()), "logprob_difference_mean": float(flat.mean())}
