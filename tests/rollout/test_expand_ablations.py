"""The ablations of the 3SPO paper: one override each, and each changes what its name says and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_experiment import RAW
from tree_world import Anywhere, Journey, Places, tasks, wander

from agentbench_rl.algorithms.state_scores import StateScores, Transition
from agentbench_rl.algorithms.state_table import StateTable
from agentbench_rl.config.topology import Expand
from agentbench_rl.presets import load_experiment
from agentbench_rl.rollout.episode import roots_of_trees
from agentbench_rl.rollout.expand import Search

ITERATION = 20
TABLE = StateTable(
    {"root": 40.0, "mid": 12.0, "dead": 30.0, "known": 5.0}, {"root": 12.0, "mid": 4.0, "dead": 1.0, "known": 5.0}
)
#: Every kind of step: to a new, known, dead or earlier state, nowhere, to a success, to a failure.
STEPS = [
    Transition(["root", "mid"], key, leaf=bool(ending), success=ending == "won", reward=float(ending == "won"))
    for key, ending in [
        ("new", ""),
        ("known", ""),
        ("dead", ""),
        ("root", ""),
        ("mid", ""),
        ("end", "won"),
        ("end", "lost"),
    ]
]


def topology(override: str = "") -> Expand:
    changes = [f"algorithms.3spo.topology.{override}"] if override else []
    found = load_experiment(RAW | {"algorithms": ["3spo"]}, changes).algorithms["3spo"].topology
    assert isinstance(found, Expand)
    return found


def scores(override: str = "") -> StateScores:
    return StateScores(TABLE, topology(override).score, ITERATION)


FULL = scores()


def differences(override: str) -> list[float]:
    """What the ablation takes from the reward of every step."""
    return [FULL.reward(step) - scores(override).reward(step) for step in STEPS]


def allocations(settings: Expand) -> list[int]:
    return [StateScores(TABLE, settings.score, ITERATION).allocation(key, settings) for key in TABLE.totals]


def decisions(override: str) -> dict[str, Any]:
    return {key: value for key, value in topology(override).model_dump().items() if key != "score"}


SCORE_ABLATIONS = ("score.novelty=none", "score.potential=none", "score.fixed_weight=0.25")


@pytest.mark.parametrize("override", SCORE_ABLATIONS)
def test_an_ablation_of_the_reward_changes_neither_scores_nor_allocations(override: str) -> None:
    assert decisions(override) == decisions("")
    for key in (*TABLE.totals, "new"):
        assert scores(override).score(key) == FULL.score(key)
    assert allocations(topology(override)) == allocations(topology())


def test_without_novelty_new_states_are_paid_nothing_for_being_new() -> None:
    weight = FULL.novelty_weight("mid")
    assert differences("score.novelty=none") == pytest.approx([weight * FULL.is_new(step) for step in STEPS])
    assert {FULL.is_new(step) for step in STEPS} == {True, False}


def test_without_the_difference_of_scores_only_novelty_and_success_are_paid() -> None:
    ablated = scores("score.potential=none")
    weight = FULL.novelty_weight("mid")
    expected = [weight * FULL.is_new(step) + 0.5 * step.success for step in STEPS]
    assert [ablated.reward(step) for step in STEPS] == pytest.approx(expected)
    changed = [change for change in differences("score.potential=none") if change]
    assert len(changed) == len(STEPS) - 1, "only a step that leads nowhere has no difference of scores"


def test_with_a_fixed_weight_novelty_does_not_fade() -> None:
    fixed = scores("score.fixed_weight=0.25")
    weights = [fixed.novelty_weight(key) for key in (*TABLE.totals, "new")]
    assert weights == [0.25] * len(weights)
    ratio = 0.25 / FULL.novelty_weight("mid")
    new_and_equal = Transition(["root", "mid"], "new", leaf=False, success=False, reward=0.0)
    level = StateScores(StateTable({"mid": 12.0}, {"mid": 0.0}), topology("score.fixed_weight=0.25").score, 0)
    adaptive = StateScores(level.table, topology().score, 0)
    assert level.reward(new_and_equal) == pytest.approx(ratio * adaptive.reward(new_and_equal))


def test_a_uniform_allocation_is_always_the_largest_and_changes_no_reward() -> None:
    assert allocations(topology("allocation=uniform")) == [8] * 4
    assert sorted(set(allocations(topology()))) != [8]
    assert 0 in allocations(topology())
    assert differences("allocation=uniform") == [0.0] * len(STEPS)
    assert topology("allocation=uniform").model_copy(update={"allocation": "adaptive"}) == topology()


def test_without_backtracking_a_tree_is_one_path_of_best_children() -> None:
    assert topology("backtrack=false").model_copy(update={"backtrack": True}) == topology()
    assert differences("backtrack=false") == [0.0] * len(STEPS)
    full, greedy = (_first_round(override) for override in ("", "backtrack=false"))
    assert len(full) > len(greedy) == 1
    assert greedy[0] == full[-1]


def _first_round(override: str) -> list[Any]:
    """The frontier of one tree after its first round."""
    search = Search.begin(roots_of_trees(tasks("s1"), 1, "s0.i0"), topology(override), StateTable(), 0)
    search.round(Journey(wander, Places(Anywhere())).play)
    (tree,) = search.state()["trees"]
    return list(tree["stack"])
