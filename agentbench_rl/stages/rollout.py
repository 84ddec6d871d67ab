"""Stage `rollout`: sample groups of episodes with the schedule's policy → rollouts, episodes, timings."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from agentbench_rl.algorithms.branch_points import quantile_threshold
from agentbench_rl.config import Experiment, Json, stage_config
from agentbench_rl.config.topology import Branch, Chains, EntropyBranch, Grow, ResampleConfig, Team, TopologyConfig
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.rollout.branching import branch
from agentbench_rl.rollout.chains import Player, Rollouts
from agentbench_rl.rollout.entropy_branching import branch_by_entropy
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, roots_of_trees, specs_of_groups
from agentbench_rl.rollout.growing import grow
from agentbench_rl.rollout.resampling import resample
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.panel import load_panel, panel_inputs
from agentbench_rl.stages.sampling import PolicyRef, player, write_rollouts
from agentbench_rl.types import AgentRLError, Progress, Task, rollout_schema, silent


def rollout(
    experiment: Experiment, layout: Layout, algorithm: str, seed: int, iteration: int, progress: Progress = silent
) -> Json:
    """Sample the groups of one iteration; ids are derived from (seed, iteration, round, task, replica)."""
    method, count = experiment.algorithms[algorithm], experiment.rollout.tasks_per_iteration
    version, topology = method.behaviour_version(iteration), method.topology
    policy = PolicyRef(layout.start(algorithm, seed, version) / "policy", "policy", version)
    panel = load_panel(layout.panels, "train")
    before = _entropies_before(layout, algorithm, seed, iteration, topology)
    prefix = f"s{seed}.i{iteration}"

    def groups(chains: Chains) -> Iterator[list[EpisodeSpec]]:
        for number, tasks in enumerate(rounds_of_tasks(panel, count, seed, iteration)):
            name = prefix + (f".r{number}" if number else "")
            yield specs_of_groups(tasks, chains.group_size, name, greedy_baseline=chains.greedy_baseline)

    def body(scratch: Path) -> StageReport:
        splits = sorted({task.split for task in panel})
        tasks = tasks_of_iteration(panel, count, seed, iteration)
        with player(experiment, policy, layout.panels / "games", splits, temperature=1.0) as play:
            match topology:
                case Chains(resample=None):
                    return write_rollouts(play(next(groups(topology)), progress), scratch)
                case Chains(resample=ResampleConfig() as settings):
                    return _resampled(groups(topology), play, count, settings, progress, scratch)
                case Branch():
                    threshold = _threshold(topology, before.get("entropies"))
                    roots = roots_of_trees(tasks, topology.trees, prefix)
                    return _of_trees(branch(roots, play, topology, threshold, progress), scratch)
                case Grow():
                    roots = roots_of_trees(tasks, topology.trees, prefix)
                    return _of_trees(grow(roots, play, topology, progress), scratch)
                case EntropyBranch():
                    chains = specs_of_groups(tasks, topology.leaves, prefix)
                    vocabulary = len(load_tokenizer(policy.path))
                    return _of_trees(branch_by_entropy(chains, play, topology, vocabulary, progress), scratch)
                case Team():
                    specs = specs_of_groups(tasks, topology.group_size, prefix)
                    return write_rollouts(play(specs, progress), scratch)
            raise AgentRLError(f"topology.kind {topology.kind} is sampled in rounds: use agentrl iterate")

    return run_stage(
        "rollout",
        layout.stage(algorithm, seed, iteration, "rollout"),
        config=stage_config(experiment, "rollout", algorithm),
        inputs={"policy": policy.path} | panel_inputs(layout.panels, "train") | before,
        seeds={"seed": seed, "iteration": iteration},
        body=body,
    )


def tasks_of_iteration(panel: Sequence[Task], count: int, seed: int, iteration: int) -> list[Task]:
    """Return the tasks of an iteration: slices of a fresh permutation of the panel per epoch, never one task twice.

    All methods of a comparison get the same tasks at the same seed and iteration. Raises AgentRLError when the
    panel is smaller than `count`.
    """
    if count > len(panel):
        raise AgentRLError(f"rollout.tasks_per_iteration is {count}, the train panel has {len(panel)} tasks")
    per_epoch = len(panel) // count
    epoch, slot = divmod(iteration, per_epoch)
    order = list(panel)
    random.Random(f"tasks/{seed}/{epoch}").shuffle(order)
    return order[slot * count : (slot + 1) * count]


def rounds_of_tasks(panel: Sequence[Task], count: int, seed: int, iteration: int) -> Iterator[list[Task]]:
    """Give the tasks of an iteration, and then, without end, of further rounds of as many distinct tasks.

    Those follow permutations of the panel of their own; a task is played again only when no unplayed one is left.
    """
    first = tasks_of_iteration(panel, count, seed, iteration)
    yield first
    generator = random.Random(f"rounds/{seed}/{iteration}")
    queue = [task for task in generator.sample(panel, len(panel)) if task not in first]
    while True:
        if len(queue) < count:
            queue += generator.sample(panel, len(panel))
        tasks = list(dict.fromkeys(queue))[:count]
        for task in tasks:
            queue.remove(task)
        yield tasks


def _entropies_before(
    layout: Layout, algorithm: str, seed: int, iteration: int, topology: TopologyConfig
) -> dict[str, Path]:
    """The rollouts whose entropies an online threshold is taken of: those of the iteration before."""
    if iteration == 0 or not isinstance(topology, Branch) or topology.select != "online_threshold":
        return {}
    return {"entropies": layout.stage(algorithm, seed, iteration - 1, "rollout") / "rollouts.parquet"}


def _threshold(settings: Branch, before: Path | None) -> float:
    if before is None:
        return settings.first_threshold
    turns = read_frame(before, rollout_schema())
    turns = turns[turns["branch"] == 0]
    entropy = turns["boundary_entropy"].to_numpy(dtype=np.float64)
    return quantile_threshold(entropy, turns["tree_id"].nunique(), settings.points)


def _of_trees(rollouts: Rollouts, scratch: Path) -> StageReport:
    """Write the trees; metric `snapshots_left`: snapshots that something still holds in this process."""
    gc.collect()
    # Whoever holds a snapshot holds its boundary; lazy objects must not be asked for their class.
    left = sum(type(thing) is Boundary for thing in gc.get_objects())
    rollouts.metrics["snapshots_left"] = float(left)
    return write_rollouts(rollouts, scratch)


def _resampled(
    rounds: Iterator[list[EpisodeSpec]],
    play: Player,
    count: int,
    settings: ResampleConfig,
    progress: Progress,
    scratch: Path,
) -> StageReport:
    """Play rounds until enough groups are informative; the total that `progress` is told grows with every round."""
    done = 0

    def play_round(specs: Sequence[EpisodeSpec]) -> Rollouts:
        nonlocal done
        before, done = done, done + len(specs)
        return play(specs, lambda finished, total: progress(before + finished, before + total))

    result = resample(rounds, play_round, count, settings)
    report = write_rollouts(result.rollouts, scratch)
    kept = len({episode["group_id"] for episode in result.rollouts.episodes})
    report.counts |= {"rounds": result.rounds, "discarded_groups": result.groups - kept}
    report.metrics["informative_groups"] = result.informative / result.groups
    return report
