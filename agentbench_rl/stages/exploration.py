"""What the iterations of a comparison explored, from their rollouts and manifests, and one tree of each method."""

from __future__ import annotations

import json
from pathlib import Path

from agentbench_rl.config import Experiment, stage_config
from agentbench_rl.evaluation.exploration import Explored
from agentbench_rl.evaluation.tree_svg import tree_svg
from agentbench_rl.evaluation.trees import telling_tree
from agentbench_rl.stages.columns import read_columns
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import merge_ledgers, require
from agentbench_rl.stages.reading import read_shape, read_tree
from agentbench_rl.types import episode_schema, rollout_schema

_STAGES = ("rollout", "advantage", "update")
_STATES = ("state_key", "next_state_key")


def explored_runs(experiment: Experiment, layout: Layout) -> dict[tuple[str, int], list[Explored]]:
    """By method and seed, what every iteration explored; of the rollouts nothing but the state keys is read."""
    return {
        (algorithm, seed): [
            _explored(experiment, layout, algorithm, seed, iteration)
            for iteration in range(experiment.training.iterations)
        ]
        for algorithm in experiment.algorithms
        for seed in experiment.seeds
    }


def _explored(experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int) -> Explored:
    directories = {stage: layout.stage(algorithm, seed, iteration, stage) for stage in _STAGES}
    manifests = {
        stage: require(directory, stage, stage_config(experiment, stage, algorithm))
        for stage, directory in directories.items()
    }
    keys = read_columns(directories["rollout"] / "rollouts.parquet", rollout_schema(), _STATES, _STATES)
    return Explored(
        states=set().union(*(keys[name] for name in _STATES)),
        rollout=manifests["rollout"]["metrics"],
        advantage=manifests["advantage"]["metrics"],
        ledger=merge_ledgers([manifest["ledger"] for manifest in manifests.values()]),
        gradient_norms=_gradient_norms(directories["update"] / "metrics.jsonl"),
    )


def _gradient_norms(path: Path) -> list[float]:
    """Of the optimizer steps that were made."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line["gradient_norm"] for line in lines if "gradient_norm" in line]


def forking(experiment: Experiment) -> list[str]:
    """Methods whose topology makes trees."""
    return [name for name, method in experiment.algorithms.items() if method.topology.kind not in ("chains", "team")]


def draw_trees(experiment: Experiment, layout: Layout, directory: Path) -> None:
    """Write `tree_METHOD.svg` of every method with trees: a `telling_tree` of the first seed's last iteration."""
    for algorithm in forking(experiment):
        rollout = layout.stage(algorithm, experiment.seeds[0], experiment.training.iterations - 1, "rollout")
        tree_id = telling_tree(read_shape(rollout), read_frame(rollout / "episodes.parquet", episode_schema()))
        if tree_id is not None:
            tree = read_tree(rollout, tree_id)
            (directory / f"tree_{algorithm}.svg").write_text(tree_svg(tree), encoding="utf-8", newline="\n")
