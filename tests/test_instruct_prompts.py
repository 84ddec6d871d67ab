"""The prompts of `alfworld-instruct` (tags, commands, a window of turns) through all stages, with a tiny model."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import yaml
from safetensors.torch import load_file

from agentbench_rl.config import Experiment
from agentbench_rl.envs import open_suite
from agentbench_rl.policies.context import parse_action
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.presets import configs_directory, load_experiment
from agentbench_rl.stages.demos import demo_schema, demos
from agentbench_rl.stages.evaluate import evaluate_start
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import load_panel, panel
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.stages.sft import demo_sequences, sft
from agentbench_rl.stages.train import train
from agentbench_rl.types import AgentRLError, rollout_schema

CHANGES: dict[str, Any] = {
    "environment": {
        "base": "alfworld-instruct",
        "max_turns": 6,
        "generator": {"receptacles": [5, 5], "objects": [4, 4], "task_types": ["pick_and_place_simple"]},
    },
    "model": {
        "base": "tiny",
        "architecture": {"hidden_size": 48, "intermediate_size": 96, "layers": 2, "vocabulary": 512},
        "context": "window",
    },
    "panels": {
        "train": {"split": "train", "size": 12},
        "validation": {"split": "valid_seen", "size": 2},
        "test": {"split": "valid_unseen", "size": 6},
    },
    "demos": {"episodes": 24, "expert": "planner"},
    "sft": {"steps": 110, "batch_tokens": 2048, "learning_rate": 5.0e-3, "warmup_steps": 5},
    "rollout": {"tasks_per_iteration": 2, "batch_slots": 8, "max_response_tokens": 48, "max_context_tokens": 1600},
    "evaluation": {"temperature": 0.0},
    "training": {"iterations": 1, "learning_rate": 1.0e-6, "dtype": "bfloat16"},
    "algorithms": {"grpo": {"base": "grpo", "topology": {"group_size": 2}}},
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Layout]:
    smoke = yaml.safe_load((configs_directory() / "experiments" / "smoke.yaml").read_text(encoding="utf-8"))
    experiment = load_experiment(smoke | CHANGES)
    layout = Layout(tmp_path_factory.mktemp("results") / experiment.name)
    panel(experiment, layout.panels)
    demos(experiment, layout)
    sft(experiment, layout)
    evaluate_start(experiment, layout, "test")
    return experiment, layout


def test_the_tags_are_learnt_and_the_action_is_what_stands_in_them(played: tuple[Experiment, Layout]) -> None:
    _, layout = played
    codec = ChatCodec(load_tokenizer(layout.sft / "policy"))
    turns = read_frame(layout.start_evaluation("test") / "rollouts.parquet", rollout_schema())
    assert turns["valid"].mean() > 0.8
    for turn in turns.itertuples():
        text = codec.decode(turn.response_ids)
        assert (turn.action, turn.valid) == parse_action(text, True, "tags")
        if turn.valid:
            assert f"<action>{turn.action}</action>" in text


def test_a_prompt_shows_the_start_the_last_two_turns_and_the_possible_commands(
    played: tuple[Experiment, Layout],
) -> None:
    experiment, layout = played
    codec = ChatCodec(load_tokenizer(layout.sft / "policy"))
    suite = open_suite(experiment.environment, layout.panels / "games")
    tasks = {task.task_id: task for task in load_panel(layout.panels, "test")}
    turns = read_frame(layout.start_evaluation("test") / "rollouts.parquet", rollout_schema())
    assert turns["step"].max() >= 4
    assert not turns["extends_parent"].any()
    for task_id, episode in turns.groupby("task_id"):
        environment = suite.make()
        start = observation = environment.reset(tasks[task_id]).text
        seen: list[str] = []
        for turn in episode.sort_values("step").itertuples():
            text = codec.decode(turn.prompt_ids)
            commands = "\n".join(environment.admissible() or [])
            assert start in text
            assert f"These commands are possible now:\n{commands}\n" in text
            if seen:
                assert "\n".join(["did.", *seen[-2:], "", "What you see now:", observation, ""]) in text
            seen.append(f"{observation}\n> {turn.action}")
            observation = environment.step(turn.action).observation
            assert observation == turn.observation


def test_demonstrations_are_learnt_under_the_prompts_that_are_played(played: tuple[Experiment, Layout]) -> None:
    experiment, layout = played
    codec = ChatCodec(load_tokenizer(layout.sft / "policy"))
    frame = read_frame(layout.demos / "demos.parquet", demo_schema())
    sequences = demo_sequences(frame, codec, experiment)
    (first,) = [item for item in sequences if item.responses[0].turn_id == f"{frame['episode_id'][0]}.0"]
    text = codec.decode(first.token_ids)
    assert "These commands are possible now:\n" + "\n".join(frame["admissible"][0]) + "\n" in text
    assert text.endswith(f"<think></think><action>{frame['action'][0]}</action>")


def test_a_small_step_survives_computation_in_bfloat16(played: tuple[Experiment, Layout]) -> None:
    experiment, layout = played
    turns = layout.stage("grpo", 0, 0, "rollout")
    train(experiment, layout, "grpo", 0, range(1), lambda *_: lambda *_: None, lambda *_: None)
    assert pd.read_parquet(turns / "episodes.parquet")["ending"].notna().all()
    before = load_file(layout.sft / "policy" / "model.safetensors")
    after = load_file(layout.stage("grpo", 0, 0, "update") / "policy" / "model.safetensors")
    changed = [name for name in before if not before[name].equal(after[name])]
    assert changed == list(before)
    assert all(0 < (after[name] - before[name]).abs().max() < 1e-5 for name in changed)


def test_the_benchmark_refuses_to_start_without_its_games() -> None:
    experiment = load_experiment("alfworld")
    assert (experiment.environment.data, experiment.sft.steps) == (None, 0)
    with pytest.raises(AgentRLError, match=r"(?s)environment\.data is not set.*agentrl env fetch alfworld"):
        check_experiment(experiment)
