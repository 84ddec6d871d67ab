"""Panels are disjoint, hashed, reproducible; and the tasks of an iteration are drawn fairly from the train panel."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_experiment import tiny

from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import PANELS, check_disjoint, draw_panels, load_panel, panel, panel_hash
from agentbench_rl.stages.rollout import tasks_of_iteration
from agentbench_rl.types import AgentRLError, Task


def pool(split: str, size: int) -> list[Task]:
    return [Task(f"{split}/{number:03d}", "errand", split, f"hash of {split} {number}") for number in range(size)]


def panels(**sizes: tuple[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"split": split, "size": size} for name, (split, size) in sizes.items()}


ONE_SPLIT = panels(train=("train", 10), validation=("train", 5), test=("train", "all"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.randoms(use_true_random=False))
def test_panels_are_disjoint_sorted_and_independent_of_the_order_of_tasks(seed: int, rng: random.Random) -> None:
    experiment = tiny(panels=ONE_SPLIT | {"seed": seed})
    tasks = pool("train", 30)
    drawn = draw_panels(experiment, {"train": tasks})
    assert {name: len(chosen) for name, chosen in drawn.items()} == {"train": 10, "validation": 5, "test": 15}
    assert sorted(task.task_id for chosen in drawn.values() for task in chosen) == [task.task_id for task in tasks]
    assert all(chosen == sorted(chosen, key=lambda task: task.task_id) for chosen in drawn.values())
    shuffled = list(tasks)
    rng.shuffle(shuffled)
    assert draw_panels(experiment, {"train": shuffled}) == drawn


def test_another_seed_draws_other_tasks() -> None:
    tasks = {"train": pool("train", 30)}
    one, two = (draw_panels(tiny(panels=ONE_SPLIT | {"seed": seed}), tasks)["train"] for seed in (0, 1))
    assert one != two


def test_a_split_with_too_few_tasks_is_named() -> None:
    with pytest.raises(AgentRLError, match=r"panels.validation.size: 5 tasks asked, split 'train' has 2 left; ask"):
        draw_panels(tiny(panels=ONE_SPLIT), {"train": pool("train", 12)})


@pytest.mark.parametrize("key", ["task_id", "content_hash"])
def test_an_overlap_is_found_by_id_and_by_content(key: str) -> None:
    one, other = pool("train", 1)[0], pool("valid_seen", 1)[0]
    same = {name: getattr(other, name) for name in ("task_id", "task_type", "split", "content_hash")}
    copy = Task(**same | {key: getattr(one, key)})
    check_disjoint({"train": [one], "test": [other]})
    with pytest.raises(AgentRLError, match=f"panels overlap: 1 tasks share a {key}"):
        check_disjoint({"train": [one], "test": [copy]})


def test_the_hash_of_a_panel_tells_ids_contents_and_order() -> None:
    tasks = pool("train", 3)
    changed = [*tasks[:2], Task(tasks[2].task_id, "errand", "train", "edited")]
    assert len({panel_hash(tasks), panel_hash(tasks[::-1]), panel_hash(tasks[:2]), panel_hash(changed)}) == 4


def test_the_stage_writes_the_panels_and_games_that_are_played(trained: Layout) -> None:
    from agentbench_rl.envs import open_suite

    experiment = tiny()
    suite = open_suite(experiment.environment, trained.panels / "games")
    for name, size in (("train", 8), ("validation", 2), ("test", 3)):
        tasks = load_panel(trained.panels, name)
        assert len(tasks) == size
        assert set(tasks) <= set(suite.tasks(getattr(experiment.panels, name).split))
    check_disjoint({name: load_panel(trained.panels, name) for name in PANELS})


def test_panels_can_be_drawn_from_games_on_disk(trained: Layout, tmp_path: Path) -> None:
    """The games that were written are data like any other: the same panels come out of them."""
    experiment = tiny()
    again = experiment.environment.model_copy(update={"data": trained.panels / "games"})
    panel(experiment.model_copy(update={"environment": again}), tmp_path / "panels")
    for name in PANELS:
        assert load_panel(tmp_path / "panels", name) == load_panel(trained.panels, name)


def test_an_edited_panel_is_refused(trained: Layout, tmp_path: Path) -> None:
    content = json.loads((trained.panels / "train.json").read_text(encoding="utf-8"))
    content["tasks"].pop()
    (tmp_path / "train.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(AgentRLError, match=r"train\.json: its tasks do not match its hash"):
        load_panel(tmp_path, "train")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tasks": [{}]}', '{"tasks": [1]}'])
def test_a_damaged_panel_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "test.json").write_text(text, encoding="utf-8")
    with pytest.raises(AgentRLError, match=r"test\.json: not a readable panel"):
        load_panel(tmp_path, "test")
    with pytest.raises(AgentRLError, match="no such panel"):
        load_panel(tmp_path, "train")


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 5))
def test_no_task_repeats_within_an_epoch_and_epochs_use_as_many_as_fit(size: int, count: int, seed: int) -> None:
    train = pool("train", size)
    if count > size:
        with pytest.raises(AgentRLError, match=f"is {count}, the train panel has {size} tasks"):
            tasks_of_iteration(train, count, seed, 0)
        return
    per_epoch = size // count
    for epoch in range(2):
        iterations = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        drawn = Counter(task for iteration in iterations for task in tasks_of_iteration(train, count, seed, iteration))
        assert sum(drawn.values()) == len(drawn) == per_epoch * count


def test_the_tasks_of_an_iteration_depend_on_seed_and_iteration() -> None:
    train = pool("train", 40)
    drawn = [tuple(tasks_of_iteration(train, 8, seed, iteration)) for seed in (0, 1) for iteration in range(10)]
    assert len(set(drawn)) == len(drawn)
    assert [tuple(tasks_of_iteration(train, 8, 0, iteration)) for iteration in range(10)] == drawn[:10]
