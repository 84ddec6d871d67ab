"""Loops of RSPO on the smallest experiment: what they publish, draw, leave untouched, resume, refuse and count."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_runs import differing, killed
from tiny_experiment import RAW, manifest, read, tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.cli.common import numbers, with_algorithm
from agentbench_rl.config import Experiment, Json
from agentbench_rl.rollout.episode import RunningEpisode
from agentbench_rl.stages import explore, reward_swap, sampling
from agentbench_rl.stages.compare import training_ledger
from agentbench_rl.stages.files import sha256
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.loop import LoopIteration
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.preflight import check_experiment, notes
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.rollout import tasks_of_iteration
from agentbench_rl.stages.train import train
from agentbench_rl.types import EXPLORER, AgentRLError, silent

SCHEDULE: Json = {"kind": "reward_swap", "period": 2, "share": 0.5, "buffer_tasks": 4}
#: The penalty gives even an unskilled policy advantages other than zero.
METHOD: Json = {
    "source": "RSPO",
    "topology": {"group_size": 2},
    "schedule": SCHEDULE,
    "reward": {"invalid_action_penalty": 0.1},
    "advantage": {"estimator": "group_mean"},
    "loss": {"kind": "moved_centre", "kl_coefficient": 0.01},
}
PPO: Json = {
    "advantage": {"estimator": "gae", "truncation": "bootstrap"},
    "critic": {"learning_rate": 0.01},
}


def experiment(sections: Json | None = None, **method: Any) -> Experiment:
    """Loops of two iterations of two fresh tasks, and of four episodes each that are drawn from eight."""
    environment = RAW["environment"] | {"max_turns": 3}
    training = RAW["training"] | {"iterations": 3, "checkpoints": "all"}
    replaced = method.pop("advantage", METHOD["advantage"])
    changed = METHOD | {key: METHOD.get(key, {}) | value for key, value in method.items()} | {"advantage": replaced}
    sections = {"environment": environment, "training": training, "algorithms": {"rspo": changed}} | (sections or {})
    return tiny(**sections)


def run(layout: Layout, of: Experiment, iterations: int = 3, name: str = "rspo", first: int = 0) -> None:
    train(of, layout, name, 0, range(first, iterations), lambda *_: silent, lambda *_: None)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Panels and start policy."""
    layout = Layout(tmp_path_factory.mktemp("start") / "tiny")
    prepare_start(tiny(), layout, lambda _: silent)
    return layout.root


@pytest.fixture
def fresh(start: Path, tmp_path: Path) -> Callable[[], Layout]:
    """Makes a copy of what a run starts from."""
    return lambda: Layout(shutil.copytree(start, tmp_path / "results" / "tiny"))


@pytest.fixture(scope="module")
def done(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A loop and the first iteration of another; read only."""
    layout = Layout(shutil.copytree(start, tmp_path_factory.mktemp("done") / "tiny"))
    run(layout, experiment())
    return layout


def stage(layout: Layout, iteration: int, name: str) -> Path:
    return layout.stage("rspo", 0, iteration, name)


def test_an_update_is_on_fresh_episodes_and_on_collected_ones_whose_dense_rewards_are_gone(done: Layout) -> None:
    collected = done.round("rspo", 0, 0, 2)
    behaviour = read(collected / "score", "scores").set_index("turn_id")["old_logprobs"]
    stored = read(collected / "advantage", "advantages").set_index("turn_id")["advantage"]
    trees: list[str] = []
    for iteration in range(2):
        fresh = read(stage(done, iteration, "rollout"), "rollouts")
        drawn = read(stage(done, iteration, "replay"), "drawn")
        assert set(fresh["policy"]) == {"policy"}
        assert set(drawn["policy"]) == {"explorer"}
        assert fresh["process_reward"].notna().all()
        assert drawn["process_reward"].isna().all()
        credited = read(stage(done, iteration, "advantage"), "advantages").set_index("turn_id")
        replayed = credited[credited["source"] == "replay"]
        assert set(replayed.index) == set(drawn["turn_id"])
        assert set(credited.index) == set(fresh["turn_id"]) | set(drawn["turn_id"])
        assert replayed["advantage"].equals(stored[replayed.index])
        assert all(np.array_equal(row, behaviour[turn]) for turn, row in replayed["behaviour_logprobs"].items())
        assert set(credited["source_weight"]) == {0.5}
        now = read(stage(done, iteration, "score"), "scores").set_index("turn_id")["old_logprobs"]
        assert not any(np.array_equal(now[turn], behaviour[turn]) for turn in replayed.index)
        trees += drawn["tree_id"].unique().tolist()
    assert len(trees) == len(set(trees)) == 8


def test_tasks_of_a_policy_are_those_of_other_methods_and_of_an_explorer_its_own(done: Layout) -> None:
    panel = load_panel(done.panels, "train")
    for iteration in range(3):
        expected = [task.task_id for task in tasks_of_iteration(panel, 4, 0, iteration)][:2]
        assert read(stage(done, iteration, "rollout"), "rollouts")["task_id"].unique().tolist() == expected
    rounds = [done.round("rspo", 0, iteration, number) / "rollout" for iteration in (0, 2) for number in range(3)]
    explored = [tuple(read(directory, "rollouts")["task_id"].unique()) for directory in rounds]
    assert [len(tasks) for tasks in explored] == [2, 2, 4] * 2
    assert len(set(explored)) == 6


def test_p8_a_loop_begins_with_a_copy_of_the_policy_and_leaves_its_checkpoint_untouched(done: Layout) -> None:
    for iteration in (0, 2):
        before = done.start("rspo", 0, iteration)
        copy = manifest(done.iteration("rspo", 0, iteration) / "rounds" / "copy")
        assert copy["outputs"]["policy"] == sha256(before / "policy")
        learnt = [manifest(done.round("rspo", 0, iteration, number) / "update")["outputs"] for number in range(2)]
        assert len({copy["outputs"]["policy"], *(outputs["policy"] for outputs in learnt)}) == 3
        updated = manifest(stage(done, iteration, "update"))["identity"]["inputs"]
        assert updated["policy"] == sha256(before / "policy")
    assert "trainer" not in manifest(stage(done, 0, "update"))["identity"]["inputs"]
    left = manifest(stage(done, 1, "update"))["outputs"]["trainer"]
    assert left == sha256(stage(done, 1, "update") / "trainer") == updated["trainer"] != copy["outputs"]["trainer"]
    counters = json.loads((stage(done, 1, "update") / "trainer" / "trainer.json").read_text(encoding="utf-8"))
    assert counters["steps"] == 4
    assert not list(done.root.glob("runs/rspo/**/rounds/**/policy"))
    assert not list(done.root.glob("runs/rspo/**/rounds/**/trainer"))


def test_the_updates_of_a_loop_s_first_iteration_shuffle_each_its_own_way(done: Layout) -> None:
    learnt = [done.round("rspo", 0, 2, number) / "update" for number in range(2)]
    seeds = [manifest(directory)["identity"]["seeds"] for directory in (stage(done, 2, "update"), *learnt)]
    assert seeds == [{"seed": 0, "iteration": 2, "phase": phase} for phase in range(3)]


def test_p8_a_buffer_is_emptied_with_the_last_iteration_of_its_loop(done: Layout) -> None:
    assert not (stage(done, 0, "swap") / "buffer.parquet").exists()
    assert len(read(stage(done, 2, "swap"), "buffer")["tree_id"].unique()) == 8
    assert not stage(done, 1, "swap").exists()


def test_tables_count_every_episode_that_was_played(done: Layout) -> None:
    ledger = training_ledger(experiment(), done, "rspo", 0, 2)
    assert ledger["episodes"] == 2 * 4 + 2 * 4 + 8
    played = [read(path.parent, "rollouts") for path in done.root.glob("runs/rspo/seed0/**/rollout/rollouts.parquet")]
    tokens = sum(turns["response_ids"].map(len).sum() for turns in played)
    assert training_ledger(experiment(), done, "rspo", 0, 3)["sampled_tokens"] == tokens
    assert ledger["optimizer_steps"] == 2 * (2 + 2)
    explored = manifest(stage(done, 0, "swap"))
    assert explored["counts"] == {"dense_episodes": 8, "collected_episodes": 8, "buffer_responses": 24}
    replay = manifest(stage(done, 1, "replay"))["metrics"]
    assert (replay["buffer_episodes"], replay["replayed_episodes"], replay["replay_missing"]) == (8, 4, 0)
    assert replay["replay_share"] == 0.5
    assert replay["replayed_distinct_states"] > 0
    assert 0 < manifest(stage(done, 1, "score"))["metrics"]["logprob_difference_max"] < 1e-4


def test_metrics_of_an_update_tell_where_the_clip_of_replayed_tokens_is(done: Layout) -> None:
    text = (stage(done, 1, "update") / "metrics.jsonl").read_text(encoding="utf-8")
    of_steps = [json.loads(line) for line in text.splitlines()]
    means = manifest(stage(done, 1, "update"))["metrics"]
    for name in ("centre_mean", "centre_distance", "centre_max", "centre_low", "clip_low", "clip_high", "ratio_mean"):
        assert means[f"replayed_{name}"] == pytest.approx(np.mean([step[f"replayed_{name}"] for step in of_steps]))
    assert means["replayed_centre_distance"] > 0.0


def test_what_is_tracked_tells_centres_replay_and_the_states_that_were_visited(done: Layout) -> None:
    stages = ("rollout", "replay", "swap", "update")
    tracked = {name for of in stages for name in numbers(of, manifest(stage(done, 0, of)))}
    assert tracked >= {
        *(f"update/replayed_centre_{name}" for name in ("mean", "distance", "max", "low")),
        *(f"replay/{name}" for name in ("replay_share", "replay_missing", "replayed_distinct_states")),
        *("rollout/distinct_states", "swap/collected_distinct_states", "cost/swap/episodes"),
    }


def test_a_buffer_or_a_history_of_other_settings_is_refused(done: Layout) -> None:
    later = LoopIteration(experiment(schedule={"buffer_tasks": 3}), done, "rspo", 0, 1)
    with pytest.raises(AgentRLError, match="another configuration of swap"):
        explore.buffer_of(later)
    with pytest.raises(AgentRLError, match="iteration000/rollout was made under another configuration of rollout"):
        run(done, experiment(schedule={"source": "history", "period": 1}), 2, first=1)


def test_p5_without_replay_an_iteration_is_the_host_s_to_the_byte(fresh: Callable[[], Layout]) -> None:
    host = {key: value for key, value in METHOD.items() if key != "schedule"}
    host["loss"] = METHOD["loss"] | {"kind": "token_clip"}
    swapping = METHOD | {"schedule": SCHEDULE | {"period": 1, "share": 0.0, "buffer_tasks": 1}}
    sections = {"rollout": RAW["rollout"] | {"tasks_per_iteration": 2}}
    of = experiment(sections | {"algorithms": {"rspo": swapping, "host": host}})
    layout = fresh()
    for name in of.algorithms:
        run(layout, of, 2, name)
    for file in ("rollout/rollouts", "rollout/episodes", "score/scores", "advantage/advantages"):
        paths = [layout.iteration(name, 0, 1) / f"{file}.parquet" for name in of.algorithms]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    ours, theirs = (manifest(layout.stage(name, 0, 1, "update"))["outputs"] for name in of.algorithms)
    assert ours["policy"] == theirs["policy"]
    assert ours["trainer"] == theirs["trainer"]


def test_dense_rewards_teach_the_explorer_alone(fresh: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningEpisode, "_dense", lambda self, _: 0.3 * self.spec.tree_id.endswith(".t0"))
    layout = fresh()
    changes = {"period": 1, "buffer_tasks": 2, "dense_scale": 2.0}
    run(layout, experiment(reward={"invalid_action_penalty": 0.0}, schedule=changes), 1)
    learnt = read(layout.round("rspo", 0, 0, 0) / "advantage", "advantages")
    np.testing.assert_allclose(learnt["advantage"].abs(), 0.9, rtol=1e-5)
    assert manifest(stage(layout, 0, "swap"))["metrics"]["dense_return"] == pytest.approx(0.45)
    assert (read(stage(layout, 0, "advantage"), "advantages")["advantage"] == 0.0).all()
    assert not read(stage(layout, 0, "replay"), "drawn").empty


@pytest.mark.parametrize(("dense", "told"), [(1.0, r"must lie in \(-1, 1\)"), (None, "is null or not finite")])
def test_a_dense_reward_out_of_range_or_absent_is_refused(
    fresh: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch, dense: float | None, told: str
) -> None:
    monkeypatch.setattr(RunningEpisode, "_dense", lambda self, _: dense)
    with pytest.raises(AgentRLError, match=f"process_reward of turn 's0.i0.e0.*{told}"):
        run(fresh(), experiment(), 1)


def test_an_environment_without_dense_rewards_is_refused_before_anything_runs() -> None:
    environment = {"base": "alfworld", "engine": "textworld"}
    with pytest.raises(AgentRLError, match=r"algorithm rspo: schedule\.source: dense needs dense rewards"):
        check_experiment(experiment({"environment": environment}))
    check_experiment(experiment({"environment": environment}, schedule={"source": "outcome"}))


def test_a_collection_on_more_tasks_than_there_are_is_refused_before_anything_runs() -> None:
    size = experiment().panels.train.size
    assert isinstance(size, int)
    check_experiment(experiment(schedule={"buffer_tasks": size}))
    more = experiment(schedule={"buffer_tasks": size + 1})
    with pytest.raises(AgentRLError, match=f"{size + 1} different tasks, the train panel has {size}: raise panels"):
        check_experiment(more)


def test_a_share_of_nothing_is_allowed_and_told_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(experiment()) == []
    idle = experiment(schedule={"share": 0.0})
    check_experiment(idle)
    # Two dense updates of four tasks and two episodes each, a collection of four tasks, two outcome updates.
    said = "trains as its host does, and a loop plays 40 episodes for the host's 16"
    assert notes(idle)[0].endswith(said)
    assert notes(idle)[0].startswith("algorithm rspo: schedule.share is 0, so nothing that is collected")
    with_algorithm(idle, "rspo")
    assert capsys.readouterr().err == f"note: {notes(idle)[0]}\n"


def test_the_explorer_samples_with_the_engine_that_the_policy_started(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def started(*, name: str, **_: Any) -> None:
        names.append(name)
        raise AgentRLError("no engine here")

    monkeypatch.setattr(sampling, "VLLMSampler", started)
    of = experiment({"rollout": RAW["rollout"] | {"sampler": "vllm"}})
    for who in ("policy", EXPLORER):
        policy = sampling.PolicyRef(Path("policy"), who, 0)
        with pytest.raises(AgentRLError, match="no engine"), sampling.loaded(of, policy, pytest.fail, 1.0):
            pass
    assert names[0] == names[1]


def test_a_policy_replays_its_own_history_once_there_is_any(fresh: Callable[[], Layout]) -> None:
    layout = fresh()
    of = experiment(schedule={"source": "history", "period": 1, "share": 0.25, "buffer_tasks": None})
    run(layout, of, 3)
    metrics = [manifest(stage(layout, iteration, "replay"))["metrics"] for iteration in range(3)]
    assert [one["replayed_episodes"] for one in metrics] == [0.0, 2.0, 2.0]
    assert [one["replay_missing"] for one in metrics] == [2.0, 0.0, 0.0]
    assert not (stage(layout, 0, "replay") / "rollouts.parquet").exists()
    drawn = read(stage(layout, 2, "replay"), "drawn")
    before = read(stage(layout, 1, "rollout"), "rollouts")
    assert set(drawn["turn_id"]) <= set(before["turn_id"])
    scores = read(stage(layout, 1, "score"), "scores").set_index("turn_id")["old_logprobs"]
    kept = drawn.set_index("turn_id")["swap_behaviour_logprobs"]
    assert all(np.array_equal(row, scores[turn]) for turn, row in kept.items())
    assert training_ledger(of, layout, "rspo", 0, 3)["episodes"] == 3 * 6


@pytest.mark.parametrize("shared", ["separate", "shared"])
def test_p8_the_explorer_of_ppo_learns_with_a_critic_of_its_own_or_with_the_policy_s(
    fresh: Callable[[], Layout], shared: str
) -> None:
    layout = fresh()
    of = experiment(schedule={"period": 1, "critic": shared, "dense_placement": "turn"}, **PPO)
    run(layout, of, 2)
    for iteration in range(2):
        rounds = layout.iteration("rspo", 0, iteration) / "rounds"
        learnt = manifest(rounds / "000" / "update")
        inputs = manifest(stage(layout, iteration, "update"))["identity"]["inputs"]
        assert learnt["outputs"]["critic"] != learnt["identity"]["inputs"]["critic"]
        assert inputs["policy"] == sha256(layout.start("rspo", 0, iteration) / "policy")
        if shared == "shared":
            assert inputs["critic"] == learnt["outputs"]["critic"]
        elif iteration:
            assert inputs["critic"] == sha256(stage(layout, 0, "update") / "critic")
        else:
            assert "critic" not in inputs
        credited = read(stage(layout, iteration, "advantage"), "advantages").set_index("source", append=True)
        assert credited["value_targets"].notna().all()
        assert (
            credited["behaviour_logprobs"].notna().sum() == (credited.index.get_level_values(1) == "replay").sum() > 0
        )
    assert inputs["trainer"] == sha256(stage(layout, 0, "update") / "trainer")
    assert not list(layout.root.glob("runs/rspo/**/rounds/**/critic"))
    assert not (stage(layout, 1, "swap") / "critic").exists()
    if shared == "shared":
        shutil.rmtree(stage(layout, 1, "swap"))
        with pytest.raises(AgentRLError, match=r"critic: this checkpoint was removed .* delete .*iteration001 and run"):
            run(layout, of, 2)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [(explore, "swap", 1), (reward_swap, "write_table", 3)],
    ids=["before the buffer is filled", "while advantages are mixed"],
)
def test_a_killed_loop_goes_on_where_it_was(
    done: Layout, fresh: Callable[[], Layout], owner: object, name: str, call: int
) -> None:
    layout = fresh()
    killed(lambda: run(layout, experiment(), 2), owner, name, call)
    first = layout.round("rspo", 0, 0, 0) / "rollout" / "manifest.json"
    kept = first.stat().st_mtime_ns
    run(layout, experiment(), 2)
    assert first.stat().st_mtime_ns == kept
    assert differing(layout, done) == differing(layout, done, "iteration001") == []


def test_work_that_was_lost_after_its_buffer_was_emptied_comes_out_the_same(done: Layout, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(done.root, tmp_path / "tiny"))
    for name in ("replay", "advantage", "update"):
        shutil.rmtree(stage(layout, 1, name))
    run(layout, experiment())
    assert differing(layout, done, "iteration001") == differing(layout, done, "iteration002") == []


def test_the_command_of_one_iteration_writes_what_the_loop_writes_and_a_second_run_nothing(
    done: Layout, fresh: Callable[[], Layout], tmp_path: Path
) -> None:
    layout = fresh()
    (tmp_path / "tiny.json").write_text(experiment().model_dump_json(), encoding="utf-8")
    (layout.root / "experiment.json").write_text(json.dumps({"name": "tiny"}), encoding="utf-8")
    where = ["--experiment", str(tmp_path / "tiny.json"), "--results", str(layout.root.parent)]
    for iteration in ("0", "1"):
        result = CliRunner().invoke(app, ["iterate", "--algorithm", "rspo", "--iteration", iteration, *where])
        assert result.exit_code == 0, result.output
    found = {name for name in differing(layout, done, "iteration001") if "validation/" not in name}
    assert found == set(differing(layout, done)) == set()
    refused = CliRunner().invoke(app, ["rollout", "--algorithm", "rspo", "--iteration", "1", *where])
    assert "agentrl iterate --algorithm rspo --seed 0 --iteration 1" in refused.stderr
    before = {path: path.stat().st_mtime_ns for path in layout.root.glob("runs/**/*") if path.name != ".lock"}
    run(layout, experiment(), 2)
    assert {path: path.stat().st_mtime_ns for path in before if path.is_file()}.items() <= before.items()
