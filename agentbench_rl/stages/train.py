"""The online loop: one process runs the stages of a segment of iterations and writes the same files as staged jobs."""

from __future__ import annotations

import json
from collections.abc import Callable

from agentbench_rl.config import Experiment, Json, validated_iterations
from agentbench_rl.stages.advantage import advantage
from agentbench_rl.stages.ahead import ahead
from agentbench_rl.stages.evaluate import evaluate_validation
from agentbench_rl.stages.files import sha256, write_atomic
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.schedules import iterate
from agentbench_rl.stages.score import needs_scores, score
from agentbench_rl.stages.update import update
from agentbench_rl.types import Progress

Observer = Callable[[str, int, Json], None]


def train(
    experiment: Experiment,
    layout: Layout,
    algorithm: str,
    seed: int,
    iterations: range,
    progress: Callable[[str, int], Progress],
    observe: Observer,
) -> None:
    """Run iterations of one method and seed; stages that are finished already are kept as they are.

    `progress(stage, iteration)` gives the callback of a long stage; `observe(stage, iteration, manifest)` is told
    of every finished stage. A method whose rollouts lag behind samples the next iteration meanwhile.
    """
    validated = set(validated_iterations(experiment))
    method = experiment.algorithms[algorithm]
    with ahead(experiment, layout, algorithm, seed) as rollouts:
        for iteration in iterations:
            run = (experiment, layout, algorithm, seed, iteration)
            if method.has_stages:
                observe("rollout", iteration, rollouts.rollout(iteration, progress("rollout", iteration)))
                if method.staleness and iteration + 1 in iterations:
                    rollouts.begin(iteration + 1)
                if needs_scores(experiment, algorithm):
                    observe("score", iteration, score(*run, progress("score", iteration)))
                observe("advantage", iteration, advantage(*run))
                observe("update", iteration, update(*run, progress("update", iteration)))
            else:
                for stage, manifest in iterate(*run, progress("rollout", iteration)).items():
                    observe(stage, iteration, manifest)
            if iteration in validated:
                observe("validation", iteration, evaluate_validation(*run, progress("validation", iteration)))
    _write_segment(layout, algorithm, seed, iterations)


def _write_segment(layout: Layout, algorithm: str, seed: int, iterations: range) -> None:
    """Write the record that a segment is done: the hashes of its outputs, and nothing that varies between runs."""
    done = {}
    for iteration in iterations:
        for path in sorted(layout.iteration(algorithm, seed, iteration).glob("*/outputs.json")):
            done[f"{iteration}/{path.parent.name}"] = sha256(path)
    write_atomic(layout.segment(algorithm, seed, iterations[-1]), json.dumps(done, indent=1, sort_keys=True) + "\n")


def segments(iterations: int, per_job: int) -> list[range]:
    """Split a run's iterations into the segments that jobs of an online run cover."""
    return [range(first, min(first + per_job, iterations)) for first in range(0, iterations, per_job)]
