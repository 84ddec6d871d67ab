"""The `post_step` schedule (3SPO): an iteration is many rounds, most of them with an update before the next.

A round expands one state of every tree, and has the stages of an iteration of its own below `rounds/`. Rounds whose
rows teach nothing, or too little by themselves, have a rollout only; the latter are trained on in a later update. At
the end the usual directories of an iteration are published. A killed iteration goes on where it was, inside a tree.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from agentbench_rl.config import Experiment, Json
from agentbench_rl.config.schedule import PostStep
from agentbench_rl.stages.advantage import advantage, advantages_of
from agentbench_rl.stages.iteration import SearchIteration
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import prune, read_manifest
from agentbench_rl.stages.published import Batch, gather, publish_rollout, publish_rows, publish_update
from agentbench_rl.stages.rounds import Rounds
from agentbench_rl.stages.score import needs_scores, score
from agentbench_rl.stages.update import prune_before, write_update
from agentbench_rl.types import Progress, silent

#: What the next round's update makes superfluous.
_CHECKPOINT = ("policy", "trainer")


def iterate(
    experiment: Experiment,
    layout: Layout,
    algorithm: str,
    seed: int,
    iteration: int,
    progress: Progress = silent,
) -> dict[str, Json]:
    """Run the rounds of one iteration and publish its stages; returns their manifests by name.

    progress: told of the responses so far, and of how many they would be if no tree ended before its cap.
    """
    run = SearchIteration(experiment, layout, algorithm, seed, iteration)
    first = _policies(run.start)
    with run.open_rounds():
        rounds, batches = _play(run, first, progress)
        manifests = {"rollout": publish_rollout(run, rounds, len(batches))}
        for stage in run.stages[1:-1]:
            manifests[stage] = publish_rows(run, stage, batches)
        manifests["update"] = publish_update(run, batches, first + len(batches))
        if batches:
            prune(run.round(batches[-1].number, "update"), _CHECKPOINT)
    prune_before(experiment, layout, algorithm, seed, iteration)
    return manifests


def _play(run: SearchIteration, first: int, progress: Progress) -> tuple[int, list[Batch]]:
    """Play all rounds; returns how many they are, and what was trained on together. first: the policy's version."""
    before, batches = run.start, list[Batch]()
    waiting: list[int] = []
    teaching = since = responses = 0
    with Rounds(run) as rounds:
        for number in count():
            manifest = rounds.rollout(number, before, first + len(batches), _after(run, responses, progress))
            responses += manifest["counts"]["responses"]
            since += 1
            if manifest["counts"]["paid"] and (taught := _teaching(run, run.round(number, "rollout"))):
                waiting.append(number)
                teaching += taught
            budget = run.schedule.max_responses
            last = rounds.finished(number) or (budget is not None and responses >= budget)
            if waiting and (last or _due(run.schedule, since, teaching)):
                batches.append(gather(run, waiting))
                _train(run, batches, before)
                before, waiting, teaching, since = run.round(number, "update"), [], 0, 0
            if last:
                progress(responses, responses)
                return number + 1, batches
    raise AssertionError("rounds are counted without an end")


def _due(schedule: PostStep, since: int, teaching: int) -> bool:
    """Whether the rounds since the last update are enough for the next one."""
    return since >= schedule.update_every and teaching >= schedule.min_responses


def _train(run: SearchIteration, batches: list[Batch], before: Path) -> None:
    """Score a batch, give credit, update; the checkpoint of the round that was updated before goes."""
    batch = batches[-1]
    layout = run.of_round(batch.number, before, batch.rollouts)
    of_round = (run.experiment, layout, run.algorithm, run.seed, run.number)
    if needs_scores(run.experiment, run.algorithm):
        score(*of_round)
    advantage(*of_round)
    write_update(*of_round, phase=batch.number)
    if len(batches) > 1:
        prune(before, _CHECKPOINT)


def _teaching(run: SearchIteration, rollouts: Path) -> int:
    """Responses of a round whose advantage is not zero."""
    frame, _ = advantages_of(rollouts, run.method, None, run.number)
    return int(((frame["loss_weight"] > 0) & (frame["advantage"] != 0)).sum())


def _policies(start: Path) -> int:
    """How many policies a run has made before the one that it begins an iteration with, which is the next version."""
    manifest = read_manifest(start)
    return 0 if manifest is None else int(manifest["counts"].get("policies", 0))


def _after(run: SearchIteration, before: int, progress: Progress) -> Progress:
    """Tell of a round's responses as of those of the iteration."""
    cap = run.experiment.rollout.tasks_per_iteration * run.search.max_responses
    total = min(cap, run.schedule.max_responses or cap)
    return lambda done, _: progress(min(before + done, total), total)
