"""What holds of the estimators of trees: P2 to P7 of siblings, faults, local terms, copies, files without plans."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from chain_frames import Chain, algorithm, frames
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tabular import group_gradients
from tree_frames import Line, Tree, played_tree, tree, tree_frames, tree_method
from tree_reference import reference

from agentbench_rl.algorithms.advantages import compute_advantages
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.types import AgentRLError

ESTIMATORS = ("sibling", "tree_weighted", "vine")
properties = settings(max_examples=15, deadline=None)


def random_tree(draw: random.Random, group: str, every: bool) -> Tree:
    """Up to five turns, up to three points (or all), up to three fresh continuations each; some die, some are silly."""
    turns = draw.randint(1, 5)

    def line(start: int) -> Line:
        length = draw.randint(1, 6 - start) if start else turns
        rewards = [draw.choice([0.0, 0.0, 0.25, 1.0]) for _ in range(length)]
        valid = [draw.random() < 0.8 for _ in range(length)]
        return Line(rewards, valid=valid, ending="env_error" if draw.random() < 0.1 else "success")

    points = range(turns) if every else sorted(draw.sample(range(turns), draw.randint(0, min(turns, 3))))
    fresh = {step: [line(step or 0) for _ in range(draw.randint(1, 3))] for step in points}
    return Tree(line(0), fresh, group=group)


def random_batch(seed: int, every: bool) -> list[Tree]:
    draw = random.Random(seed)
    trees = [random_tree(draw, f"g{group}", every) for group in range(2) for _ in range(draw.randint(1, 2))]
    return [*trees, tree([1.0], {0: [[0.0]]}, "g0")]


def random_method(seed: int, estimator: str) -> AlgorithmConfig:
    draw = random.Random(seed)
    choices: dict[str, dict[str, list[object]]] = {
        "sibling": {
            "suffix": ["suffix", "action"],
            "prefix": ["nearest", "sum", "mean"],
            "layout": ["dedup", "replicated"],
            "lam": [0.0, 0.5, 1.0],
            "root_weight": [0.0, 0.5],
        },
        "tree_weighted": {"baseline": ["task", "batch"]},
        "vine": {},
    }
    chosen = {name: draw.choice(values) for name, values in choices[estimator].items()}
    reward = {"scale": draw.choice([1.0, 10.0]), "invalid_action_penalty": draw.choice([0.0, 0.125])}
    return tree_method(estimator, reward=reward, **chosen)


seeds = st.integers(0, 2**32)
IDS = ["turn_id", "parent_id", "task_id", "group_id", "tree_id"]


def by_turn(rollouts: pd.DataFrame, episodes: pd.DataFrame, method: AlgorithmConfig) -> dict[str, tuple[float, float]]:
    frame, _ = compute_advantages(rollouts, episodes, method)
    return dict(zip(frame["turn_id"], zip(frame["advantage"], frame["loss_weight"], strict=True), strict=True))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seeds)
@settings(max_examples=40, deadline=None)
def test_arrays_agree_with_the_definition_tree_by_tree(estimator: str, seed: int) -> None:
    trees, method = random_batch(seed, estimator == "vine"), random_method(seed, estimator)
    found, expected = by_turn(*tree_frames(trees), method), reference(trees, method)
    assert found.keys() == expected.keys()
    for turn, (advantage, weight) in expected.items():
        assert found[turn] == (pytest.approx(advantage, abs=1e-9), pytest.approx(weight)), turn


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seeds)
@properties
def test_permuting_rows_and_renaming_ids_changes_no_bit(estimator: str, seed: int) -> None:
    rollouts, episodes = tree_frames(random_batch(seed, estimator == "vine"))
    method, draw = random_method(seed, estimator), random.Random(seed)
    expected = by_turn(rollouts, episodes, method)
    shuffled = rollouts.sample(frac=1.0, random_state=seed % 2**31)
    leaves = episodes.sample(frac=1.0, random_state=seed % 2**31)
    assert by_turn(shuffled, leaves, method) == expected
    rename = {name: f"n{draw.random()}" for column in IDS for name in rollouts[column].dropna()}
    renamed = shuffled.assign(**{name: shuffled[name].map(rename) for name in IDS})
    found = by_turn(renamed, leaves.assign(leaf_turn_id=leaves["leaf_turn_id"].map(rename)), method)
    assert found == {rename[turn]: credit for turn, credit in expected.items()}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seeds, st.sampled_from([0.5, -3.0]))
@properties
def test_a_shift_of_all_returns_changes_nothing_and_a_scale_all_in_proportion(
    estimator: str, seed: int, shift: float
) -> None:
    rollouts, episodes = tree_frames(random_batch(seed, estimator == "vine"))
    method = random_method(seed, estimator)
    method = method.model_copy(update={"reward": method.reward.model_copy(update={"invalid_action_penalty": 0.0})})
    expected = by_turn(rollouts, episodes, method)
    moved = by_turn(rollouts, episodes.assign(**{"return": episodes["return"] + shift}), method)
    scaled = by_turn(rollouts, episodes.assign(**{"return": 4.0 * episodes["return"]}), method)
    for turn, (advantage, weight) in expected.items():
        assert moved[turn] == (pytest.approx(advantage, abs=1e-9), weight)
        assert scaled[turn] == (pytest.approx(4.0 * advantage, abs=1e-9), weight)


@given(seeds)
@properties
def test_leads_of_siblings_sum_to_zero(seed: int) -> None:
    draw = random.Random(seed)
    returns = [draw.choice([0.0, 0.25, 1.0]) for _ in range(draw.randint(2, 6))]
    found = by_turn(*tree_frames([tree(returns[:1], {0: [[value] for value in returns[1:]]})]), tree_method("sibling"))
    assert sum(advantage for advantage, _ in found.values()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("estimator", ["sibling", "tree_weighted"])
def test_two_siblings_get_their_difference(estimator: str) -> None:
    found = by_turn(*tree_frames([tree([0.75], {0: [[0.25]]})]), tree_method(estimator))
    assert [advantage for advantage, _ in found.values()] == [0.5, -0.5]


@given(seeds)
@properties
def test_one_point_at_the_start_is_leave_one_out_of_independent_episodes(seed: int) -> None:
    draw = random.Random(seed)
    lines = [[draw.choice([0.0, 0.25, 1.0]) for _ in range(draw.randint(1, 4))] for _ in range(4)]
    expected, _ = compute_advantages(*frames([Chain("g", line) for line in lines]), algorithm("leave_one_out"))
    found, _ = compute_advantages(*tree_frames([tree(lines[0], {0: lines[1:]})]), tree_method("sibling"))
    np.testing.assert_allclose(found["advantage"], expected["advantage"], atol=1e-12)
    assert (found["loss_weight"] == 1.0).all()


def test_lam_decides_how_much_an_earlier_turn_gets() -> None:
    item = tree([0.0] * 4, {3: [[1.0], [0.0]]})
    for lam, expected in ((0.0, [0.0, 0.0, 0.0, -0.5]), (1.0, [-0.5] * 4), (0.5, [-0.0625, -0.125, -0.25, -0.5])):
        found = by_turn(*tree_frames([item]), tree_method("sibling", lam=lam))
        assert [found[f"t0.b0.{step}"][0] for step in range(4)] == expected


def test_every_turn_is_trained_in_exactly_one_row() -> None:
    rollouts, episodes = tree_frames([tree([0.0] * 4, {1: [[0.0] * 3] * 3, 3: [[1.0]] * 3})])
    frame, _ = compute_advantages(rollouts, episodes, tree_method("sibling"))
    assert len(episodes) == 1 + 2 * 3
    assert frame["turn_id"].tolist() == rollouts["turn_id"].tolist()
    assert (frame["loss_weight"] == 1.0).all()


@pytest.mark.parametrize("prefix", ["nearest", "sum", "mean"])
def test_copies_of_a_prefix_cancel(prefix: str) -> None:
    item = played_tree([1, 0, 1], {2: [[0], [1], [0]]}, lambda path: float(path[2]), "g")
    method = tree_method("sibling", prefix=prefix, layout="replicated")
    rollouts, episodes = tree_frames([item])
    found = by_turn(rollouts, episodes, method)
    assert [found[f"t0.b0.{step}"] for step in range(3)] == [(0.0, 4.0), (0.0, 4.0), (pytest.approx(2 / 3), 1.0)]
    (gradient,) = group_gradients(rollouts, episodes, method, [0.4] * 3)
    assert gradient[:2].tolist() == [0.0, 0.0]
    dedup = tree_method("sibling", prefix=prefix)
    assert (group_gradients(rollouts, episodes, dedup, [0.4] * 3)[0] != 0.0).all()


def test_copies_of_a_prefix_cancel_over_several_points_where_leads_are_summed() -> None:
    item = tree([0.0] * 4, {1: [[0, 0, 1.0]] * 2, 3: [[1.0], [0.0], [0.0]]})
    found = by_turn(*tree_frames([item]), tree_method("sibling", prefix="sum", layout="replicated"))
    assert found["t0.b0.0"] == (0.0, 6.0)
    assert found["t0.b0.1"] == (pytest.approx(-1.0 / 4.0), 4.0), "its own point's lead is not copied"
    assert [found[f"t0.b0.{step}"] for step in (2, 3)] == [(0.0, 4.0), (pytest.approx(-1 / 3), 1.0)]


def test_copies_are_averaged_and_weigh_their_number() -> None:
    item = tree([0.0] * 3, {0: [[0.0] * 3], 2: [[1.0]]})
    nearest = by_turn(*tree_frames([item]), tree_method("sibling", lam=0.5, layout="replicated"))
    assert nearest["t0.b0.0"] == (0.5 * (0.0 + 0.25), 2.0)


def test_the_lead_among_the_backbones_of_a_task_is_added_on_all_their_turns() -> None:
    trees = [
        tree([0.0, 1.0], {1: [[0.0]]}),
        tree([0.0, 0.0], {1: [[0.0]]}),
        tree([0.0, 0.0], {}, "other"),
    ]
    found = by_turn(*tree_frames(trees), tree_method("sibling", lam=0.0, root_weight=0.5))
    assert [found[f"t0.b0.{step}"][0] for step in range(2)] == [0.5, 1.5]
    assert found["t0.b1.1"][0] == -1.0
    assert [found[f"t1.b0.{step}"][0] for step in range(2)] == [-0.5, -0.5]
    assert [found[f"t2.b0.{step}"][0] for step in range(2)] == [0.0, 0.0]


def test_what_a_path_is_charged_counts_in_its_return() -> None:
    silly = Tree(Line([0.0, 1.0]), {1: [Line([1.0], valid=[False])]})
    found = by_turn(*tree_frames([silly]), tree_method("sibling", reward={"invalid_action_penalty": 0.25}))
    assert [found["t0.b0.1"][0], found["t0.b1.1"][0]] == [0.25, -0.25]
    before = replace(silly, backbone=Line([0.0, 1.0], valid=[False, True]))
    assert by_turn(*tree_frames([before]), tree_method("sibling", reward={"invalid_action_penalty": 0.25})) == found


@pytest.mark.parametrize("estimator", ["sibling", "tree_weighted"])
def test_a_group_that_lost_a_sibling_is_rejected_and_counted(estimator: str) -> None:
    whole = {2: [Line([1.0]), Line([0.0])]}
    hurt = Tree(Line([0.0] * 3), {1: [Line([1.0, 0.0]), Line([0.0, 0.0], ending="env_error")], **whole})
    frame, diagnostics = compute_advantages(*tree_frames([hurt, tree([1.0])]), tree_method(estimator))
    assert (diagnostics["branch_groups"], diagnostics["rejected_groups"]) == (1.0, 1.0)
    without = by_turn(*tree_frames([Tree(Line([0.0] * 3), whole), tree([1.0])]), tree_method(estimator))
    found = frame.set_index("turn_id")
    assert (found.loc[["t0.b1.1", "t0.b1.2"], "loss_weight"] == 0.0).all()
    names = {"t0.b3.2": "t0.b1.2", "t0.b4.2": "t0.b2.2"}
    for turn in ("t0.b0.0", "t0.b0.1", "t0.b0.2", "t0.b3.2", "t0.b4.2"):
        expected = without[names.get(turn, turn)]
        assert (found.loc[turn, "advantage"], found.loc[turn, "loss_weight"]) == expected


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_tree_whose_backbone_died_is_not_trained_on(estimator: str) -> None:
    hurt = Tree(Line([0.0] * 3, ending="env_error"), {1: [Line([1.0, 0.0])], 2: [Line([0.0])]})
    frame, diagnostics = compute_advantages(*tree_frames([hurt, tree([1.0])]), tree_method(estimator))
    assert (frame.loc[frame["turn_id"].str.startswith("t0"), "loss_weight"] == 0.0).all()
    assert diagnostics["branch_groups"] == 0.0
    assert diagnostics["rejected_groups"] == 2.0


def test_a_point_whose_fresh_continuations_all_died_is_counted() -> None:
    hurt = Tree(Line([0.0, 1.0]), {1: [Line([1.0], ending="env_error")]})
    frame, diagnostics = compute_advantages(*tree_frames([hurt]), tree_method("sibling"))
    assert frame["advantage"].tolist() == [0.0, 0.0]
    assert (diagnostics["rejected_groups"], diagnostics["informative_groups"]) == (1.0, 0.0)


@pytest.mark.parametrize("estimator", ["sibling", "tree_weighted"])
def test_a_tree_without_points_teaches_nothing_of_its_own(estimator: str) -> None:
    frame, diagnostics = compute_advantages(*tree_frames([tree([0.0, 1.0])]), tree_method(estimator))
    assert (frame["advantage"].tolist(), frame["loss_weight"].tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert diagnostics["branch_groups"] == diagnostics["informative_groups"] == 0.0


def test_a_turn_is_worth_the_reward_and_the_change_of_the_value() -> None:
    item = tree([0.25, 0.0, 0.5], {0: [[0.25, 0.25], [0.0]], 1: [[0.0], [0.5]], 2: [[0.5], [0.0]]})
    frame, _ = compute_advantages(*tree_frames([item]), tree_method("vine"))
    value = [0.25, 0.25, 0.25, 0.0]
    expected = [reward + value[t + 1] - value[t] for t, reward in enumerate((0.25, 0.0, 0.5))]
    np.testing.assert_allclose(frame["advantage"][:3], expected)
    assert frame["loss_weight"].tolist() == [1.0] * 3 + [0.0] * (len(frame) - 3)


def test_turns_beside_a_state_whose_value_is_not_known_are_not_trained_on() -> None:
    fresh = {0: [Line([0.0])], 1: [Line([0.0], ending="env_error")], 2: [Line([1.0])], 3: [Line([0.0])]}
    frame, diagnostics = compute_advantages(*tree_frames([Tree(Line([0.0] * 4), fresh)]), tree_method("vine"))
    backbone = frame[frame["turn_id"].str.contains("b0")]
    assert backbone["loss_weight"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert backbone["advantage"].tolist() == [0.0, 0.0, -1.0, 0.0]
    assert diagnostics["valued_turns"] == 0.5


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seeds)
@properties
def test_a_file_that_does_not_tell_what_was_planned_counts_what_is_there(estimator: str, seed: int) -> None:
    trees = random_batch(seed, estimator == "vine")
    for item in trees:
        for line in (item.backbone, *(line for lines in item.fresh.values() for line in lines)):
            line.ending = "success"
    rollouts, episodes = tree_frames(trees)
    method = random_method(seed, estimator)
    expected = by_turn(rollouts, episodes, method)
    assert by_turn(rollouts.drop(columns="branch_siblings"), episodes, method) == expected
    assert by_turn(rollouts.assign(branch_siblings=None), episodes, method) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"branch_siblings": 2}, "branch_siblings of turn 't0.b0.1' is 2, but 3 siblings"),
        ({"branch_siblings": 2.5}, "branch_siblings holds a number that is no integer"),
        ({"branch": 1}, "shares tree_id and branch with another"),
        ({"parent_id": "t0.b1.1"}, "'t0.b2.1' goes on from a fresh continuation"),
    ],
)
def test_a_file_that_is_no_tree_of_a_backbone_is_refused(change: dict[str, object], message: str) -> None:
    rollouts, episodes = tree_frames([tree([0.0, 0.0, 0.0], {1: [[0.0, 0.0], [1.0, 0.0]]})])
    turn = "t0.b0.1" if "branch_siblings" in change else "t0.b2.1"
    for column, value in change.items():
        rollouts[column] = rollouts[column].astype(object)
        rows = rollouts["turn_id"].str.startswith("t0.b2") if column == "branch" else rollouts["turn_id"] == turn
        rollouts.loc[rows, column] = value
    with pytest.raises(AgentRLError, match=message):
        compute_advantages(rollouts, episodes, tree_method("sibling"))


@pytest.mark.parametrize(
    ("estimator", "advantage"), [("sibling", {"root_weight": 0.5}), ("tree_weighted", {"baseline": "task"})]
)
def test_trees_of_a_task_cannot_be_compared_where_there_is_one(estimator: str, advantage: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"raise topology\.trees"):
        tree_method(estimator, trees=1, **advantage)
