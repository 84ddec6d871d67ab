"""Configurations: mistakes are named, changes reach their place, and each stage reads its own part only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_experiment import RAW, tiny

from agentbench_rl.config import STAGE_READS, Experiment, Json, config_hash, stage_config
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.presets import (
    configs_directory,
    load_algorithm,
    load_environment,
    load_experiment,
    preset_names,
)
from agentbench_rl.types import AgentRLError

SCHEMA = Path(__file__).parents[1] / "workflows/schemas/experiment.schema.yaml"
REGENERATE = """the schema is out of date; write it anew:  python - <<'END'
import pathlib, yaml
from agentbench_rl.config import Experiment
path = pathlib.Path("workflows/schemas/experiment.schema.yaml")
head = path.read_text().splitlines()[:2]
path.write_text("\\n".join(head) + "\\n" + yaml.safe_dump(Experiment.model_json_schema(), sort_keys=False))
END"""


def change(*overrides: str) -> Experiment:
    return load_experiment(RAW, overrides)


SEARCH = "source: x, topology: {kind: expand}, schedule: {kind: post_step}, advantage: {estimator: state_score}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainning.iterations=3", "trainning: unknown key"),
        ("training.iteration=3", "training.iteration: unknown key"),
        ("algorithms.grpo.loss.clip=3", "algorithms.grpo.loss.clip: unknown key"),
        ("training.iterations=0", "training.iterations: Input should be greater than 0"),
        ("training.learning_rate=fast", "training.learning_rate: Input should be a valid number"),
        ("training.learning_rate=.inf", "training.learning_rate: Input should be a finite number"),
        ("rollout.max_fault_share=1.5", "rollout.max_fault_share: Input should be less than or equal to 1"),
        ("environment.generator.receptacles=[9, 6]", "9 is larger than 6"),
        ("environment.generator.task_types=[dance]", "unknown ['dance']"),
        ("environment.name=chess", "environment: Input tag 'chess'"),
        ("algorithms.grpo.topology.group_size=1", "needs groups larger than one"),
        ("algorithms.grpo.loss.norm_constant=16", "norm_constant goes with"),
        ("algorithms={}", "at least one algorithm"),
        (f"algorithms.a={{{SEARCH}, loss: {{kind: entropy_clip}}}}", "entropy_clip, which reads their entropies"),
        ("algorithms.grpo.topology.kind=expand", "and advantage.estimator: state_score go together"),
        ("algorithms.a/b={source: x, advantage: {estimator: group_mean}}", "'a/b' names directories"),
        ("algorithms.sft={source: x, advantage: {estimator: group_mean}}", "'sft', which is the start policy"),
        ("seeds=[]", "at least one algorithm and one seed"),
        ("seeds=[1, 1]", "repeats a seed"),
        ("name=My Experiment", "name: String should match"),
        ("training", "section.key=value"),
        ("name.part=1", "'name' is a value, not a section"),
        ("seeds=[1", "override 'seeds=[1': the value cannot be read as YAML"),
    ],
)
def test_a_mistake_is_named_by_its_key(override: str, message: str) -> None:
    with pytest.raises(AgentRLError) as error:
        change(override)
    assert message in str(error.value)


def test_all_mistakes_of_a_file_are_listed_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(RAW | {"sft": {"step": -1}, "seed": 0}), encoding="utf-8")
    with pytest.raises(AgentRLError) as error:
        load_experiment(file)
    for part in (str(file), "sft.step: unknown key", "sft.steps: Field required", "seed: unknown key"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("environment", "alfword", "unknown environment 'alfword'; did you mean 'alfworld'?"),
        ("model", "tinny", "unknown model 'tinny'; did you mean 'tiny'?"),
        ("algorithms", ["grpo", "drgrp"], "unknown algorithm 'drgrp'; did you mean 'drgrpo'?"),
        ("algorithms", {"mine": {"base": "grppo"}}, "unknown algorithm 'grppo'; did you mean 'grpo'?"),
        ("algorithms", {"mine": {"base": 3}}, "algorithms.mine.base: expected a preset's name, found 3"),
        ("algorithms", {"mine": 3}, "algorithms.mine: expected a preset's name or a mapping, found 3"),
        ("algorithms", ["grpo", ["rloo"]], "expected a preset's name or a mapping, found ['rloo']"),
        ("algorithms", [{"base": "grpo"}], "algorithms"),
        ("algorithms", "grpo", "algorithms"),
        ("model", 7, "model: expected a preset's name or a mapping, found 7"),
    ],
)
def test_an_unknown_preset_is_answered_with_the_known_ones(section: str, value: object, message: str) -> None:
    with pytest.raises(AgentRLError) as error:
        load_experiment(RAW | {section: value})
    assert message in str(error.value)


def test_an_unknown_experiment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AgentRLError, match=r"unknown experiment 'quikstart'; did you mean 'quickstart'.*smoke"):
        load_experiment("quikstart")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1", "cannot be read as YAML"), ("- a\n- b", "expected a mapping"), ("\x00", "cannot be read as YAML")],
)
def test_a_file_that_is_no_mapping_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(AgentRLError, match=message):
        load_experiment(file)
    with pytest.raises(AgentRLError, match="no such configuration file"):
        load_experiment(tmp_path / "absent.yaml")


def test_a_directory_does_not_hide_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smoke").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_experiment("smoke").name == "smoke"


def test_overrides_reach_every_depth_and_keep_the_rest() -> None:
    overrides = ("training.learning_rate=3e-4", "algorithms.grpo.loss.clip_high=0.28", "model.context=window")
    changed, plain = change(*overrides), tiny()
    assert changed.training.learning_rate == 3e-4
    assert changed.algorithms["grpo"].loss.clip_high == 0.28
    assert changed.algorithms["grpo"].loss.clip_low == plain.algorithms["grpo"].loss.clip_low
    assert changed.model.context == "window"
    assert changed.model.architecture == plain.model.architecture
    assert changed.algorithms["rloo"] == plain.algorithms["rloo"]


def test_base_with_changes_equals_the_preset_but_for_the_changes() -> None:
    method = tiny().algorithms["rloo"]
    preset = load_algorithm("rloo")
    assert method.reward.invalid_action_penalty == 0.1
    assert method.topology.group_size == 2
    assert method.loss == preset.loss
    assert method.advantage == preset.advantage


def test_a_resolved_experiment_loads_as_itself(tmp_path: Path) -> None:
    file = tmp_path / "experiment.json"
    file.write_text(tiny().model_dump_json(), encoding="utf-8")
    assert load_experiment(file) == tiny()


@pytest.mark.parametrize("kind", ["algorithms", "environments", "models", "experiments"])
def test_every_shipped_preset_is_valid(kind: str) -> None:
    loaders: dict[str, Any] = {
        "algorithms": load_algorithm,
        "environments": load_environment,
        "experiments": load_experiment,
        "models": lambda name: load_experiment(RAW | {"model": name}),
    }
    names = preset_names(kind)
    assert names
    for name in names:
        loaders[kind](name)
    assert {path.name for path in configs_directory().iterdir()} == set(loaders)


def test_the_hash_depends_on_values_not_on_order() -> None:
    assert config_hash({"a": 1, "b": {"c": [1, 2], "d": None}}) == config_hash({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert config_hash({"a": [1, 2]}) != config_hash({"a": [2, 1]})
    assert config_hash({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def stale(*overrides: str, raw: Json = RAW) -> set[tuple[str, str | None]]:
    """(stage, method) whose identity the overrides change; the report aside, which shows everything."""
    before, after = load_experiment(raw), load_experiment(raw, overrides)
    return {
        (stage, method)
        for stage in STAGE_READS
        if stage != "report"
        for method in (None, *before.algorithms)
        if stage_config(before, stage, method) != stage_config(after, stage, method)
    }


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("algorithms.grpo.loss.clip_low=0.1", {"update"}),
        ("algorithms.grpo.loss.kl_coefficient=0.5", {"update"}),
        ("algorithms.grpo.loss.kl_coefficient=0", {"score", "update"}),
        ("algorithms.grpo.reward.kl_coefficient=0.1", {"advantage"}),
        ("algorithms.grpo.modifiers=[{kind: empg}]", {"score", "advantage"}),
        ("algorithms.grpo.replay={}", {"advantage"}),
        ("algorithms.grpo.old_logprobs=sampler", {"score", "update"}),
        ("algorithms.grpo.advantage.epsilon=0.1", {"advantage"}),
        ("algorithms.grpo.reward.scale=2", {"advantage"}),
        ("algorithms.grpo.topology.group_size=4", {"rollout"}),
    ],
)
def test_a_setting_of_one_method_makes_only_its_own_stages_stale(override: str, stages: set[str]) -> None:
    assert stale(override) == {(stage, "grpo") for stage in stages}


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("critic.learning_rate=0.5", {"update"}),
        ("critic.value_clip=null", {"update"}),
        ("critic.backbone=shared", {"score", "update"}),
        ("advantage.lam=0.5", {"advantage"}),
        ("advantage.truncation=bootstrap", {"score", "advantage"}),
        ("loss={kind: entropy_clip}", {"score", "advantage", "update"}),
    ],
)
def test_a_setting_of_a_method_with_a_critic_makes_only_its_readers_stale(override: str, stages: set[str]) -> None:
    raw = RAW | {"algorithms": {"grpo": "grpo", "ppo": {"base": "ppo"}}}
    assert stale(f"algorithms.ppo.{override}", raw=raw) == {(stage, "ppo") for stage in stages}


@pytest.mark.parametrize(
    "override",
    [
        "environment.data=elsewhere",
        "training.iterations=9",
        "evaluation.every=1",
        "mode=staged",
        "iterations_per_job=7",
        "seeds=[0, 1]",
        "tracking.enabled=true",
        "rollout.workers=9",
        "rollout.server_seconds=9",
        "algorithms.rloo.source=a book",
    ],
)
def test_paths_and_how_a_run_is_carried_out_make_nothing_stale(override: str) -> None:
    assert stale(override) == set()


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("panels.seed=1", {"panel"}),
        ("demos.failure_rate=0.3", {"demos"}),
        ("sft.steps=21", {"sft"}),
        ("dense_model.steps=21", {"dense_model"}),
        ("dense_model.episodes=21", {"dense_rollout", "dense_model"}),
        ("model.architecture.layers=2", {"sft"}),
        ("training.learning_rate=1e-5", {"update"}),
        ("training.dtype=bfloat16", {"dense_rollout", "dense_model", "rollout", "score", "update", "evaluate"}),
        ("rollout.tasks_per_iteration=2", {"rollout"}),
        ("rollout.max_response_tokens=3", {"dense_rollout", "rollout", "evaluate"}),
        ("evaluation.temperature=0", {"evaluate"}),
        ("evaluation.level=0.9", {"compare"}),
        ("environment.prompt.system=Be brief.", {"sft", "dense_rollout", "rollout", "evaluate"}),
        ("environment.generator.seed=1", {"panel"}),
    ],
)
def test_a_common_setting_makes_exactly_its_readers_stale(override: str, stages: set[str]) -> None:
    assert {stage for stage, _ in stale(override)} == stages


def test_every_part_of_a_method_that_shapes_results_is_read_by_a_stage() -> None:
    read = {
        key.split(".")[1]
        for stage in STAGE_READS
        if stage != "report"
        for key in stage_config(tiny(), stage, "grpo")
        if key.startswith("algorithm.")
    }
    assert set(AlgorithmConfig.model_fields) - read == {"source"}


def test_the_published_schema_is_that_of_the_code() -> None:
    published = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    published.pop("$schema")
    assert published == Experiment.model_json_schema(), REGENERATE
