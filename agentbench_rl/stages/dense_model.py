"""Stage `dense_model`: a model of dense rewards, trained on episodes of the start policy and shared by all methods.

It predicts an episode's outcome as the sum of its turns' dense rewards. The episodes are kept beside it (`rollout/`);
those of some tasks are not trained on, but tell how well it predicts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from agentbench_rl.config import Experiment, Json, PretrainedModel, TinyModel, stage_config
from agentbench_rl.policies.dense_model import DenseModel, save_dense_model
from agentbench_rl.policies.loading import load_policy, load_tokenizer
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.rollout.episode import EpisodeSpec, specs_of_groups
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, merge_ledgers, run_stage
from agentbench_rl.stages.panel import load_panel, panel_inputs
from agentbench_rl.stages.sampling import PolicyRef, play, write_rollouts
from agentbench_rl.stages.sft import local_model
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.training.dense_model import (
    LabelledEpisode,
    dense_scores,
    fit,
    shard_dense_model,
    train_dense_model,
    turn_sequences,
)
from agentbench_rl.training.sequences import Sequence
from agentbench_rl.training.sharding import full_weights
from agentbench_rl.training.world import current_world, together
from agentbench_rl.types import AgentRLError, Progress, Task, episode_schema, rollout_schema, silent


def dense_model(experiment: Experiment, layout: Layout, progress: Progress = silent) -> Json:
    """Play the episodes, train the model, write `model/` and `metrics.jsonl`.

    Raises AgentRLError for a team, and when the episodes are of a single task, or their outcomes do not differ or are
    not in [0, 1].
    """
    if experiment.team is not None:
        raise AgentRLError("dense_model: dense rewards are those of single agents; this experiment has a team")
    collected = _collect(experiment, layout, progress)
    episodes, rollouts = (layout.dense_model / "rollout" / f"{name}.parquet" for name in ("episodes", "rollouts"))
    inputs = {"episodes": episodes, "rollouts": rollouts, "policy": layout.sft / "policy"}
    if (directory := local_model(experiment.dense_model.architecture)) is not None:
        inputs["backbone"] = directory

    def body(scratch: Path) -> StageReport:
        report = together(_made, experiment, layout.sft / "policy", episodes, rollouts, scratch, progress=progress)
        report.ledger = merge_ledgers([collected["ledger"], report.ledger])
        return report

    config = stage_config(experiment, "dense_model")
    return run_stage("dense_model", layout.dense_model, config=config, inputs=inputs, body=body)


def _made(
    experiment: Experiment, start: Path, episodes: Path, rollouts: Path, scratch: Path, progress: Progress = silent
) -> StageReport:
    """Train the model and write it; all processes do so together, and the first one writes. start: the start policy."""
    use_threads(experiment.threads)
    world = current_world()
    played = labelled(read_frame(episodes, episode_schema()), episodes)
    model = open_model(experiment, start, experiment.device if world.mesh is None else "cpu")
    turns = read_frame(rollouts, rollout_schema())
    sequences = turn_sequences(model, load_tokenizer(start), turns)
    shard_dense_model(model, experiment.training, world)
    report = _train(experiment, model, _of_episodes(sequences, turns, played), played, scratch, progress)
    weights = None if world.mesh is None else full_weights(model, world)
    if world.leads:
        if weights is not None:
            model = open_model(experiment, start, "cpu")
            model.load_state_dict(weights)
        save_dense_model(model, scratch / "model")
    return report


def _collect(experiment: Experiment, layout: Layout, progress: Progress) -> Json:
    """Play episodes with the start policy: one after another of every training task, in passes over all of them."""
    settings = experiment.dense_model
    policy = PolicyRef(layout.sft / "policy", "policy", 0)
    specs = list(islice(_specs(load_panel(layout.panels, "train"), settings.seed), settings.episodes))

    def body(scratch: Path) -> StageReport:
        return write_rollouts(play(experiment, policy, layout.panels / "games", specs, 1.0, progress), scratch)

    return run_stage(
        "rollout",
        layout.dense_model / "rollout",
        config=stage_config(experiment, "dense_rollout"),
        inputs={"policy": policy.path} | panel_inputs(layout.panels, "train"),
        body=body,
        code="dense_model",
    )


def _specs(panel: list[Task], seed: int) -> Iterator[EpisodeSpec]:
    number = 0
    while True:
        order = random.Random(f"dense_model/{seed}/{number}").sample(panel, len(panel))
        yield from specs_of_groups(order, 1, f"dense{seed}.{number}")
        number += 1


def labelled(episodes: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The episodes without an infrastructure fault, with outcomes that can be learnt from."""
    played = episodes[episodes["return"].notna()].reset_index(drop=True)
    outside = ~played["return"].between(0.0, 1.0)
    if outside.any():
        wrong = played[outside].iloc[0]
        raise AgentRLError(
            f"{path}: the return of {wrong['episode_id']!r} is {wrong['return']}; a model of dense rewards learns "
            "outcomes in [0, 1]"
        )
    if played["return"].nunique() < 2:
        raise AgentRLError(
            f"{path}: the outcomes of its {len(played)} episodes are all the same, and a model of dense rewards learns "
            "nothing from them: raise dense_model.episodes, or make the start policy better (demos, sft)"
        )
    if played["task_id"].nunique() < 2:
        raise AgentRLError(
            f"{path}: all episodes are of one task, and some are to be held out: raise panels.train.size"
        )
    return played


def open_model(experiment: Experiment, start: Path, device: str) -> DenseModel:
    """An untrained model with the backbone that `dense_model.architecture` tells; `start`: the start policy."""
    settings = experiment.dense_model
    backbone: Any
    match settings.architecture:
        case PretrainedModel(name_or_path=name, revision=revision):
            backbone, tokenizer = load_policy(name, "float32", device, revision), load_tokenizer(name, revision)
        case TinyModel() as architecture:
            tokenizer = load_tokenizer(start)
            backbone = build_policy(architecture, tokenizer, settings.seed, "dense_model.architecture")
        case None:
            backbone, tokenizer = load_policy(start, "float32", device), load_tokenizer(start)
    own_tokens = isinstance(settings.architecture, PretrainedModel)
    return DenseModel(backbone.to(device), tokenizer, own_tokens, settings.mlp_size, settings.seed)


def _of_episodes(sequences: list[Sequence], turns: pd.DataFrame, played: pd.DataFrame) -> list[LabelledEpisode]:
    """The turns of every episode; the collected ones are chains."""
    tree_of = dict(zip(turns["turn_id"], turns["tree_id"], strict=True))
    by_tree: dict[str, list[Sequence]] = {}
    for sequence in sequences:
        by_tree.setdefault(tree_of[sequence.responses[0].turn_id], []).append(sequence)
    outcomes = zip(played["tree_id"], played["return"], strict=True)
    return [LabelledEpisode(tuple(by_tree[tree]), float(outcome)) for tree, outcome in outcomes]


def _train(
    experiment: Experiment,
    model: DenseModel,
    episodes: list[LabelledEpisode],
    played: pd.DataFrame,
    scratch: Path,
    progress: Progress,
) -> StageReport:
    """Train on the episodes of some tasks, and measure on both parts."""
    settings, training, world = experiment.dense_model, experiment.training, current_world()
    tasks = sorted(played["task_id"].unique())
    count = min(max(1, round(settings.held_out * len(tasks))), len(tasks) - 1)
    held_out = played["task_id"].isin(random.Random(f"held out/{settings.seed}").sample(tasks, count)).to_numpy()
    lines: list[str] = []
    processed = 0.0

    def on_step(step: int, metrics: dict[str, float]) -> None:
        nonlocal processed
        processed += metrics["processed_tokens"]
        lines.append(json.dumps({**metrics, "step": step}, sort_keys=True))
        progress(step + 1, settings.steps)

    trained = [episode for episode, held in zip(episodes, held_out, strict=True) if not held]
    train_dense_model(model, trained, settings, training, on_step, world)
    if world.leads:
        (scratch / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    sequences = [sequence for episode in episodes for sequence in episode.sequences]
    scores, measured = dense_scores(model, sequences, training, world=world)
    sums = np.array([_sum(episode, scores) for episode in episodes])
    outcomes = played["return"].to_numpy(dtype=np.float64)
    told = fit(sums[held_out], outcomes[held_out])
    metrics = fit(sums[~held_out], outcomes[~held_out]) | {f"held_out_{name}": value for name, value in told.items()}
    counts = {"episodes": len(trained), "held_out_episodes": int(held_out.sum()), "held_out_tasks": count}
    counts["parameters"] = sum(weights.numel() for weights in model.parameters())
    return StageReport(
        counts, {"processed_tokens": processed + measured}, metrics | {"outcome": float(outcomes.mean())}
    )


def _sum(episode: LabelledEpisode, scores: dict[str, float]) -> float:
    return sum(scores[response.turn_id] for sequence in episode.sequences for response in sequence.responses)
