"""Stage `sft`: the start policy that all methods of a comparison share, cloned from the demonstrations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from agentbench_rl.config import Experiment, Json, PretrainedModel, stage_config
from agentbench_rl.policies.context import EpisodeContext, format_action
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import ChatCodec, train_tokenizer
from agentbench_rl.stages.demos import demo_schema
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import StageReport, run_stage
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.training.memory import memory_errors
from agentbench_rl.training.sequences import Sequence, training_sequences
from agentbench_rl.training.sft import behaviour_clone
from agentbench_rl.training.sharding import full_weights, recompute_blocks, shard_policy
from agentbench_rl.training.world import current_world, together
from agentbench_rl.types import Progress, silent


def sft(experiment: Experiment, layout: Layout, progress: Progress = silent) -> Json:
    """Build or load the policy, clone the demonstrations for `sft.steps` steps, write `policy/` and `metrics.jsonl`."""
    demos = layout.demos / "demos.parquet"

    def body(scratch: Path) -> StageReport:
        lines: list[str] = []

        def on_step(step: int, metrics: dict[str, float]) -> None:
            lines.append(json.dumps({**metrics, "step": step}, sort_keys=True))
            progress(step + 1, experiment.sft.steps)

        report = together(_clone, experiment, demos, scratch, on_step=on_step)
        (scratch / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return report

    config, inputs = stage_config(experiment, "sft"), {"demos": demos}
    if (directory := local_model(experiment.model.architecture)) is not None:
        # What counts is what the directory holds, not where it lies.
        inputs["model"] = directory
        config["model"]["architecture"]["name_or_path"] = None
    return run_stage("sft", layout.sft, config=config, inputs=inputs, body=body)


def _clone(
    experiment: Experiment, demos: Path, scratch: Path, on_step: Callable[[int, dict[str, float]], None] | None = None
) -> StageReport:
    """Clone the demonstrations and write `policy/`; all processes do so together, and the first one writes."""
    use_threads(experiment.sft.threads)
    world = current_world()
    frame = read_frame(demos, demo_schema())
    device = experiment.device if world.mesh is None else "cpu"  # the shards move to the device
    model, tokenizer = _start(experiment, frame, device)
    sequences = demo_sequences(frame, ChatCodec(tokenizer), experiment)
    counts = {"sequences": len(sequences), "parameters": sum(p.numel() for p in model.parameters())}
    if experiment.training.gradient_checkpointing:
        recompute_blocks(model)
    own = {"dtype": "float32", "lora": None, "micro_batch_tokens": experiment.sft.batch_tokens}
    training = experiment.training.model_copy(update=own)
    with memory_errors("behaviour cloning", model.config, 1, training, world):
        shard_policy(model, training, world)
        totals = behaviour_clone(model, sequences, experiment.sft, on_step, world)
    weights = None if world.mesh is None else full_weights(model, world)
    if world.leads:
        if weights is not None:
            model, _ = _start(experiment, frame, "cpu")
            model.load_state_dict(weights)
        save_policy(model, tokenizer, scratch / "policy")
    return StageReport(counts=counts, metrics=totals)


def demo_sequences(frame: pd.DataFrame, codec: ChatCodec, experiment: Experiment) -> list[Sequence]:
    """Demonstrations as token sequences under the experiment's context; failed actions are not among the responses.

    Rows with a `system` are those of a team's members, and each of them has a prompt of its own.
    """
    rows = pd.DataFrame(list(_turns(frame, codec, experiment)))
    failed = set(rows.loc[~rows["trainable"], "turn_id"])
    sequences = []
    for sequence in training_sequences(rows):
        kept = tuple(response for response in sequence.responses if response.turn_id not in failed)
        if kept:
            sequences.append(Sequence(sequence.token_ids, kept))
    return sequences


def _turns(frame: pd.DataFrame, codec: ChatCodec, experiment: Experiment) -> Iterator[dict[str, Any]]:
    if experiment.team is not None:
        yield from _outputs(frame, codec)
        return
    prompt_config = experiment.environment.prompt
    for episode_id, episode in groupby(frame.to_dict("records"), key=lambda row: str(row["episode_id"])):
        context = EpisodeContext(codec, prompt_config, experiment.model)
        parent = None
        for row in episode:
            prompt = context.prompt(str(row["observation"]), list(row["admissible"]))
            response = codec.encode_response(format_action(str(row["action"]), prompt_config.action_format))
            context.respond(response, True, str(row["action"]))
            turn_id = f"{episode_id}.{row['step']}"
            yield {
                "turn_id": turn_id,
                "parent_id": parent,
                "extends_parent": prompt.extends_parent,
                "prompt_ids": prompt.added_ids,
                "response_ids": response,
                "trainable": bool(row["trainable"]),
            }
            parent = turn_id


def _outputs(frame: pd.DataFrame, codec: ChatCodec) -> Iterator[dict[str, Any]]:
    for row in frame.to_dict("records"):
        texts = {"system": str(row["system"]), "user": str(row["observation"])}
        yield {
            "turn_id": f"{row['episode_id']}.{row['step']}",
            "parent_id": None,
            "extends_parent": False,
            "prompt_ids": codec.open([{"role": role, "content": text} for role, text in texts.items()]),
            "response_ids": codec.encode_response(str(row["action"])),
            "trainable": bool(row["trainable"]),
        }


def local_model(architecture: object) -> Path | None:
    """The directory that an architecture's weights are read from, if there is one."""
    if isinstance(architecture, PretrainedModel) and Path(architecture.name_or_path).is_dir():
        return Path(architecture.name_or_path)
    return None


def _start(experiment: Experiment, frame: pd.DataFrame, device: str) -> tuple[Any, Any]:
    architecture = experiment.model.architecture
    if isinstance(architecture, PretrainedModel):
        source = (architecture.name_or_path, "float32", device, architecture.revision)
        return load_policy(*source), load_tokenizer(architecture.name_or_path, architecture.revision)
    tokenizer = train_tokenizer(_texts(frame, experiment), architecture.vocabulary)
    model: Any = build_policy(architecture, tokenizer, experiment.sft.seed)
    return model.to(device), tokenizer


def _texts(frame: pd.DataFrame, experiment: Experiment) -> list[str]:
    """All that the policy is to read and write, as often as it occurs; instructions of a single agent once."""
    if experiment.team is not None:
        return [str(text) for row in frame[["system", "observation", "action"]].to_numpy() for text in row]
    prompt = experiment.environment.prompt
    responses = [format_action(str(action), prompt.action_format) for action in frame["action"]]
    turns = zip(frame["observation"], responses, strict=True)
    return [prompt.system or "", *(str(text) for turn in turns for text in turn)]
