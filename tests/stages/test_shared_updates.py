"""Stages that train, in two processes and with adapters: their files are those of one process, but for rounding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_experiment import RAW, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.stages import score as scoring
from agentbench_rl.stages import sft as cloning
from agentbench_rl.stages import update as stage
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.train import train
from agentbench_rl.training.checkpoint import load_trainer_state
from agentbench_rl.training.world import World, follow
from agentbench_rl.types import AgentRLError, silent
from tests.training.ranks import in_processes

ADAPTERS = {"rank": 2, "alpha": 8}


def experiment(**training: Any) -> Experiment:
    return tiny(training=RAW["training"] | training)


def begun(trained: Layout, root: Path) -> Layout:
    """What is there before the first update of rloo."""
    for name in ("panels", "sft"):
        shutil.copytree(trained.root / name, root / name)
    first = trained.iteration("rloo", 0, 0).relative_to(trained.root)
    for name in ("rollout", "score", "advantage"):
        shutil.copytree(trained.root / first / name, root / first / name)
    return Layout(root)


def update_both(world: World, settings: Experiment, layout: Layout) -> None:
    """What torchrun's processes do of `agentrl update`."""
    if world.leads:
        stage.update(settings, layout, "rloo", 0, 0)
    else:
        follow()


def weights(layout: Layout, iteration: int = 0) -> dict[str, torch.Tensor]:
    found = load_file(layout.stage("rloo", 0, iteration, "update") / "policy" / "model.safetensors")
    return dict(found)


def lines(layout: Layout) -> list[dict[str, float]]:
    text = (layout.stage("rloo", 0, 0, "update") / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], start: Layout) -> None:
    """The changes of the weights agree to a relative 1e-3: Adam's first steps are as large for tiny gradients."""
    before = load_file(start.sft / "policy" / "model.safetensors")
    assert found.keys() == expected.keys()
    ours, theirs = (torch.cat([(of[name] - before[name]).flatten() for name in before]) for of in (found, expected))
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-3


def test_two_processes_write_the_policy_of_one_and_one_goes_on(trained: Layout, tmp_path: Path) -> None:
    layout = begun(trained, tmp_path / "tiny")
    in_processes(2, update_both, experiment(), layout)
    out = layout.stage("rloo", 0, 0, "update")
    assert_close(weights(layout), weights(trained), trained)
    for ours, theirs in zip(lines(layout), lines(trained), strict=True):
        names = ("loss", "gradient_norm", "trained_tokens", "entropy")
        assert [ours[name] for name in names] == pytest.approx([theirs[name] for name in names], rel=1e-4, abs=1e-6)
    policy = trained.stage("rloo", 0, 0, "update") / "policy"
    for path in policy.iterdir():
        if path.name != "model.safetensors":
            assert (out / "policy" / path.name).read_bytes() == path.read_bytes()
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["processes"] == 2
    assert manifest["identity"] == (read_manifest(policy.parent) or {})["identity"]
    train(experiment(), layout, "rloo", 0, range(2), lambda *_: silent, lambda *_: None)
    assert read_manifest(out) == manifest
    assert load_trainer_state(layout.stage("rloo", 0, 1, "update") / "trainer").steps == 4


def clone_both(world: World, settings: Experiment, layout: Layout) -> None:
    """What torchrun's processes do of `agentrl sft`."""
    if world.leads:
        cloning.sft(settings, layout)
    else:
        follow()


def test_two_processes_clone_the_start_policy_of_one(trained: Layout, tmp_path: Path) -> None:
    settings = tiny(
        sft=RAW["sft"] | {"steps": 6, "batch_tokens": 512},
        training=RAW["training"] | {"gradient_checkpointing": True},
    )
    layouts = [Layout(tmp_path / name / "tiny") for name in ("both", "alone")]
    for layout in layouts:
        shutil.copytree(trained.demos, layout.demos)
    both, alone = layouts
    in_processes(2, clone_both, settings, both)
    cloning.sft(settings, alone)
    for path in (alone.sft / "policy").iterdir():
        if path.name != "model.safetensors":
            assert (both.sft / "policy" / path.name).read_bytes() == path.read_bytes()
    found, expected = (load_file(layout.sft / "policy" / "model.safetensors") for layout in layouts)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    of_both, of_one = (read_manifest(layout.sft) for layout in layouts)
    assert of_both is not None
    assert of_one is not None
    assert (of_both["processes"], of_one["processes"]) == (2, 1)
    assert of_both["identity"] == of_one["identity"]
    assert of_both["counts"] == of_one["counts"]
    for name, value in of_one["metrics"].items():
        if name != "processed_tokens":
            assert of_both["metrics"][name] == pytest.approx(value, rel=1e-4)


def test_adapters_alone_are_trained_on_the_start_policy_and_saved_in_it(trained: Layout, tmp_path: Path) -> None:
    settings = experiment(lora=ADAPTERS)
    layout = begun(trained, tmp_path / "tiny")
    train(settings, layout, "rloo", 0, range(2), lambda *_: silent, lambda *_: None)
    start = load_file(layout.sft / "policy" / "model.safetensors")
    for iteration in range(2):
        state = load_trainer_state(layout.stage("rloo", 0, iteration, "update") / "trainer")
        assert state.steps == 2 * (iteration + 1)
        assert all(".lora_" in name for name in (*state.moments, *state.weights))
        found = weights(layout, iteration)
        assert found.keys() == start.keys()
        for name, value in start.items():
            parts = [state.weights.get(name.replace(".weight", f".lora_{part}.default.weight")) for part in "BA"]
            if parts[0] is None or parts[1] is None:
                assert torch.equal(found[name], value), name
            else:
                torch.testing.assert_close(found[name], value + 4 * parts[0] @ parts[1])
                assert not torch.equal(found[name], value), name
    policy = layout.stage("rloo", 0, 1, "update") / "policy"
    assert (policy / "base" / "model.safetensors").samefile(layout.sft / "policy" / "model.safetensors")
    apart: Any = PeftModel.from_pretrained(load_policy(policy / "base"), str(policy / "adapter"))
    ids = torch.arange(5, 25)[None]
    with torch.inference_mode():
        torch.testing.assert_close(apart(input_ids=ids).logits, load_policy(policy)(input_ids=ids).logits)
    both = begun(trained, tmp_path / "both" / "tiny")
    in_processes(2, update_both, settings, both)
    assert_close(weights(both), weights(layout), layout)
    train(settings, both, "rloo", 0, range(2), lambda *_: silent, lambda *_: None)
    assert load_trainer_state(both.stage("rloo", 0, 1, "update") / "trainer").steps == 4


@pytest.mark.parametrize(
    ("module", "function", "error"),
    [
        (stage, "update_policy", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        (cloning, "behaviour_clone", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        (scoring, "score_tokens", RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 8 bytes")),
    ],
)
def test_a_device_without_room_is_told_with_a_prediction_and_what_helps(
    trained: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, error: RuntimeError
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, function, full)
    layout = begun(trained, tmp_path / "tiny")
    shutil.copytree(trained.demos, layout.demos)
    for finished in (layout.sft / "manifest.json", layout.stage("rloo", 0, 0, "score") / "manifest.json"):
        finished.unlink()
    run = (experiment(), layout, "rloo", 0, 0)
    work: dict[Any, tuple[Callable[[], Any], str, str]] = {
        stage: (lambda: stage.update(*run), "update", r"training\.micro_batch_tokens"),
        cloning: (lambda: cloning.sft(*run[:2]), "behaviour cloning", r"sft\.batch_tokens"),
        scoring: (lambda: scoring.score(*run), "scoring", r"training\.micro_batch_tokens"),
    }
    call, name, limit = work[module]
    message = (
        rf"out of memory in the {name}: it was predicted to take about .* GiB on each device \(weights .*, logits .*\)"
        rf"\. Nothing that was finished is lost\. What helps, in this order: lower {limit} \(now \d+\); .*torchrun"
    )
    with pytest.raises(AgentRLError, match=message):
        call()


def test_settings_that_do_not_fit_together_are_refused(trained: Layout, tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match=r"training\.cpu_offload frees a GPU's memory"):
        experiment(cpu_offload=True)
    layout = begun(trained, tmp_path / "tiny")
    with pytest.raises(AgentRLError, match=r"lora\.target_modules \['nothing'\]"):
        stage.update(experiment(lora=ADAPTERS | {"target_modules": ["nothing"]}), layout, "rloo", 0, 0)
