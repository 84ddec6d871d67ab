"""What the drawing of a tree shows: shape, numbers, and nothing that a policy wrote as markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pandas as pd
import pytest
from rollout_trees import branched, expanded

from agentbench_rl.evaluation.tree_svg import tree_svg
from agentbench_rl.evaluation.trees import path_of, telling_tree, tree_of
from agentbench_rl.types import AgentRLError


def test_turns_without_a_fork_between_them_are_one_run() -> None:
    rollouts, episodes, advantages = branched()
    tree = tree_of(rollouts, episodes, "g.t0", advantages)
    (start,) = tree.starts
    assert [turn.step for turn in start.turns] == [0, 1]
    assert [len(fork.turns) for fork in start.forks] == [4, 3, 2, 6]
    assert sum(len(run.turns) for run in tree.runs) == len(rollouts)


def test_every_turn_knows_the_leaves_below_its_own_entropy_and_credit() -> None:
    tree = tree_of(*branched()[:2], "g.t0", branched()[2])
    root, won = tree.starts[0].turns[0], tree.starts[0].forks[1].turns
    assert sorted(root.returns) == [0.0, 0.0, 1.0, 1.0]
    assert root.mean_return == 0.5
    assert (root.weight, root.ending) == (0.0, None)
    assert won[0].entropy == 1.25
    assert won[0].advantage == pytest.approx(2 / 3)
    assert (won[-1].returns, won[-1].ending) == ((1.0,), "success")


def test_a_fault_is_no_return_of_zero_and_an_unvisited_state_has_no_return() -> None:
    rollouts, episodes, advantages = expanded()
    turns = {turn.turn_id: turn for turn in tree_of(rollouts, episodes, "r", advantages).turns}
    assert (turns["r.b4.1"].ending, turns["r.b4.1"].mean_return) == ("env_error", None)
    assert turns["r.b1.0"].mean_return == 1.0
    assert (turns["r.b0.0"].ending, turns["r.b0.0"].mean_return) == (None, None)
    assert turns["r.b3.1"].score == 0.2


@pytest.mark.parametrize("make", [branched, expanded])
def test_the_picture_does_not_depend_on_the_order_of_rows(make: type) -> None:
    frames = make()
    name = frames[0]["tree_id"].iloc[0]
    shuffled = [frame.sample(frac=1.0, random_state=3) for frame in frames]
    pictures = [
        tree_svg(tree_of(rollouts, episodes, name, credit)) for rollouts, episodes, credit in (frames, shuffled)
    ]
    assert pictures[0] == pictures[1]


def test_what_a_policy_or_an_environment_wrote_is_text_in_the_picture() -> None:
    svg = tree_svg(tree_of(*expanded()[:2], "r"))
    root = ElementTree.fromstring(svg)
    assert {element.tag.split("}")[1] for element in root.iter()} == {
        *("svg", "style", "rect", "text", "tspan", "circle", "path", "g", "title")
    }
    texts = [text for element in root.iter() if (text := element.text)]
    assert any("<script>alert(1)</script>" in text for text in texts)
    assert any("take cup� 2" in text for text in texts)
    assert "\x00" not in svg


def test_the_picture_tells_every_number_and_every_turn() -> None:
    rollouts, episodes, advantages = expanded()
    svg = tree_svg(tree_of(rollouts, episodes, "r", advantages))
    text = re.sub(r"<[^>]+>", " ", svg)
    for shown in ("R 0.50 H 0.70 S 0.35 n 3", "A +0.61 r +0.81", "✓ success, return 1", "✗ env_error, no return"):
        assert shown in text
    assert "not expanded" in text
    assert svg.count("<title>") == len(rollouts)
    bare = re.sub(r"<[^>]+>", " ", tree_svg(tree_of(*branched()[:2], "g.t0")))
    assert "state score" not in bare
    assert "A +" not in bare


def test_labels_of_inner_runs_do_not_reach_into_the_next_fork() -> None:
    rollouts, episodes, advantages = branched()
    root = ElementTree.fromstring(tree_svg(tree_of(rollouts, episodes, "g.t0", advantages)))
    places = {element.text: float(element.get("x", "nan")) for element in root.iter() if element.get("x")}
    label = next(text for text in places if text and text.startswith("go to desk 0"))
    fork = min(x for text, x in places.items() if text and text.startswith("go to desk 2"))
    assert places[label] + 5.5 * len(label) < fork


def test_a_path_goes_from_the_root_to_its_leaf_through_shared_turns() -> None:
    rollouts, _, _ = branched()
    path = path_of(rollouts, "g.t0.b2.3")
    assert path["turn_id"].tolist() == ["g.t0.b0.0", "g.t0.b0.1", "g.t0.b2.2", "g.t0.b2.3"]
    assert path_of(rollouts, "g.t0.b9").empty


def test_broken_trees_are_refused() -> None:
    rollouts, episodes, _ = branched()
    with pytest.raises(AgentRLError, match="no tree 'x'"):
        tree_of(rollouts, episodes, "x")
    with pytest.raises(AgentRLError, match="its parent 'gone' is no turn"):
        tree_of(rollouts.assign(parent_id=["gone", *rollouts["parent_id"][1:]]), episodes, "g.t0")
    cycle = rollouts.assign(parent_id=["g.t0.b0.1", *rollouts["parent_id"][1:]])
    with pytest.raises(AgentRLError, match="cycle"):
        tree_of(cycle, episodes, "g.t0")
    with pytest.raises(AgentRLError, match="cycle"):
        path_of(cycle, "g.t0.b2.3")


def test_the_drawn_tree_is_the_first_with_both_outcomes_else_the_one_with_most_leaves_and_turns() -> None:
    def told(**trees: list[bool | None]) -> str | None:
        """Trees of one turn more than leaves, all sampled in the first state."""
        leaves = [{"tree_id": name, "success": won} for name, all_won in trees.items() for won in all_won]
        turns = [
            {"tree_id": name, "parent_id": None} for name, all_won in trees.items() for _ in range(len(all_won) + 1)
        ]
        return telling_tree(pd.DataFrame(turns), pd.DataFrame(leaves, columns=["tree_id", "success"]))

    assert told(a=[True], b=[False, False], c=[True, False], d=[False, True]) == "c"
    assert told(a=[True], b=[False, None], c=[False, False, False]) == "c"
    one = pd.DataFrame({"tree_id": ["a"] * 2 + ["b"] * 3, "parent_id": [None] * 5})
    assert telling_tree(one, pd.DataFrame({"tree_id": [], "success": []})) == "b"
    chain = pd.DataFrame({"tree_id": ["a", "a", "b"], "parent_id": [None, "a.0", None]})
    assert telling_tree(chain, pd.DataFrame({"tree_id": ["a", "b"], "success": [True, False]})) is None
