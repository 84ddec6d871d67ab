"""Demonstrations: they end in success, and their failed actions fail, are not imitated, and are followed by others."""

from __future__ import annotations

from itertools import islice

import pandas as pd
import pytest
from tiny_experiment import tiny

from agentbench_rl.config import Experiment
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.envs import open_suite
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.stages.demos import demo_schema, demonstrate, demos
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.sft import demo_sequences
from agentbench_rl.types import AgentRLError, Task

OFTEN = {"episodes": 12, "failure_rate": 0.5}


def record(experiment: Experiment, layout: Layout) -> pd.DataFrame:
    demos(experiment, layout)
    return read_frame(layout.demos / "demos.parquet", demo_schema())


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    long = tiny().environment.model_copy(update={"max_turns": 30})
    return tiny(demos=OFTEN).model_copy(update={"environment": long})


@pytest.fixture(scope="module")
def recorded(experiment: Experiment, trained: Layout, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    layout = Layout(tmp_path_factory.mktemp("demos"))
    layout.panels.symlink_to(trained.panels)
    return record(experiment, layout)


def test_a_replay_sees_the_same_wins_and_only_failed_actions_are_inadmissible(
    experiment: Experiment, trained: Layout, recorded: pd.DataFrame
) -> None:
    suite = open_suite(experiment.environment, trained.panels / "games")
    tasks: dict[str, Task] = {task.task_id: task for task in load_panel(trained.panels, "train")}
    assert recorded["episode_id"].nunique() == 12
    for _, rows in recorded.groupby("episode_id"):
        environment = suite.make()
        observation = environment.reset(tasks[rows["task_id"].iloc[0]]).text
        for row in rows.to_dict("records"):
            assert row["observation"] == observation
            assert (row["action"] in (environment.admissible() or [])) == row["trainable"]
            result = environment.step(str(row["action"]))
            observation = result.observation
        assert result.success


@pytest.mark.parametrize("team", [None, TeamConfig(workflow="propose_act")])
def test_the_environments_of_demonstrations_are_closed(
    experiment: Experiment, trained: Layout, monkeypatch: pytest.MonkeyPatch, team: TeamConfig | None
) -> None:
    suite = open_suite(experiment.environment, trained.panels / "games")
    closed: list[object] = []
    monkeypatch.setattr(type(suite.make()), "close", lambda environment: closed.append(environment))
    played = demonstrate(suite, load_panel(trained.panels, "train"), experiment.model_copy(update={"team": team}))
    assert len(list(islice(played, 3))) == len(set(map(id, closed))) == 3


def test_a_failed_action_is_followed_by_another_one(recorded: pd.DataFrame) -> None:
    following = recorded.groupby("episode_id")["action"].shift(-1)
    failed = ~recorded["trainable"]
    assert 0.2 < failed.mean() < 0.6
    assert (following[failed] != recorded["action"][failed]).all()


def test_failed_actions_stand_in_the_context_but_are_not_imitated(
    experiment: Experiment, trained: Layout, recorded: pd.DataFrame
) -> None:
    codec = ChatCodec(load_tokenizer(trained.sft / "policy"))
    sequences = demo_sequences(recorded, codec, experiment)
    imitated = {response.turn_id for sequence in sequences for response in sequence.responses}
    expected = recorded[recorded["trainable"]]
    assert imitated == {f"{row.episode_id}.{row.step}" for row in expected.itertuples()}
    failed = recorded[~recorded["trainable"]].iloc[0]
    texts = [codec.decode(sequence.token_ids) for sequence in sequences]
    assert any(str(failed["action"]) in text for text in texts)


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_episodes(
    experiment: Experiment, trained: Layout, recorded: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> None:
    frames = {}
    for seed in (0, 1):
        layout = Layout(tmp_path_factory.mktemp("demos"))
        layout.panels.symlink_to(trained.panels)
        changed = experiment.demos.model_copy(update={"seed": seed})
        frames[seed] = record(experiment.model_copy(update={"demos": changed}), layout)
    assert frames[0].equals(recorded)
    assert frames[1]["action"].tolist() != recorded["action"].tolist()


def test_every_task_is_shown_before_one_is_shown_twice(experiment: Experiment, trained: Layout) -> None:
    suite = open_suite(experiment.environment, trained.panels / "games")
    tasks = load_panel(trained.panels, "train")
    episodes = demonstrate(suite, tasks, experiment)
    shown = [episode[0]["task_id"] for episode in (next(episodes) for _ in range(2 * len(tasks))) if episode]
    assert len(set(shown[: len(tasks) // 2])) == len(tasks) // 2
    assert max(shown.count(task) for task in shown) <= 2


def test_an_expert_that_rarely_wins_is_reported(
    experiment: Experiment, trained: Layout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layout = Layout(tmp_path_factory.mktemp("demos"))
    layout.panels.symlink_to(trained.panels)
    hasty = experiment.environment.model_copy(update={"max_turns": 1})
    with pytest.raises(AgentRLError, match=r"demos: the search expert won 0 of 20 episodes"):
        demos(experiment.model_copy(update={"environment": hasty}), layout)
