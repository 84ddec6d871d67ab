"""The best-first search: order of expansion, counts, caps, faults, and a search that is resumed in the middle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tree_world import Journey, Places, tasks

from agentbench_rl.algorithms.state_table import StateTable, state_key
from agentbench_rl.config.topology import Expand, StateScore
from agentbench_rl.rollout.episode import Row, roots_of_trees
from agentbench_rl.rollout.expand import Search

SCORE = StateScore(warmup_iterations=0)


def expand(score: StateScore = SCORE, **settings: Any) -> Expand:
    return Expand(kind="expand", score=score, **settings)


def key(place: str, task: str = "s1") -> str:
    return state_key(place, task, "errand", SCORE)


def by_branch(answers: dict[int, str]) -> Callable[[str], str]:
    return lambda session: answers[int(session.rpartition(".b")[2])]


@dataclass
class Played:
    """All rounds of a search: rows of every round (ancestors included), episodes, metrics."""

    rounds: list[list[Row]]
    episodes: list[list[Row]]
    metrics: list[dict[str, float]]

    @property
    def turns(self) -> list[Row]:
        """Every turn once, in the order of sampling."""
        return [row for number, rows in enumerate(self.rounds) for row in rows if row["expand_round"] == number]


def run(search: Search, journey: Journey) -> Played:
    played = Played([], [], [])
    while not search.finished:
        rollouts = search.round(journey.play)
        played.rounds.append(rollouts.turns)
        played.episodes.append(rollouts.episodes)
        played.metrics.append(rollouts.metrics)
        assert journey.world.open == 0
    return played


#: The tree of the paper's figure 2, with all eight leaves: s5 is a success, s8 and the s6 after s7 are failures.
FIGURE = {0: "s2", 1: "s3", 2: "s5", 3: "s6", 4: "s5", 5: "s8", 6: "s5", 7: "s5", 8: "s7", 9: "s5", 10: "s5", 11: "s6"}
FIGURE_ENDS = {
    **{(place, "s5"): True for place in ("s2", "s3", "s6", "s7")},
    ("s6", "s8"): False,
    ("s7", "s6"): False,
}
#: Success rates at which S is 0.2 (n = 2) and 0.3 (n = 3) in iteration 99, alpha 1, and visits that hardly move them.
VISITS = 10_000.0
RATES = {"s1": 0.3495, "s2": 0.3495, "s6": 0.3495, "s3": 0.2614, "s7": 0.2614}


def figure_table() -> StateTable:
    table = StateTable()
    for place, rate in RATES.items():
        table.totals[key(place)], table.successes[key(place)] = VISITS, rate * VISITS
    return table


def test_the_tree_of_the_papers_figure_is_searched_and_counted_as_there() -> None:
    table = figure_table()
    settings = expand(SCORE.model_copy(update={"count": "leaf", "decay": 1.0}), max_leaves=20)
    search = Search.begin(roots_of_trees(tasks("s1"), 1, "s0.i99"), settings, table, 99)
    journey = Journey(by_branch(FIGURE), Places(FIGURE_ENDS))
    played = run(search, journey)
    new = [[row for row in rows if row["expand_round"] == number] for number, rows in enumerate(played.rounds)]
    assert [(rows[0]["state_key"], len(rows)) for rows in new] == [
        ("s1", 2),
        ("s2", 2),
        ("s6", 2),
        ("s3", 3),
        ("s7", 3),
    ]
    assert sum(len(episodes) for episodes in played.episodes) == 8
    before = figure_table()
    places = ("s1", "s2", "s3", "s5", "s6", "s7", "s8")
    totals = {place: round(table.total(key(place)) - before.total(key(place)), 6) for place in places}
    successes = {place: round(table.success(key(place)) - before.success(key(place)), 6) for place in places}
    assert totals == {"s1": 8, "s2": 3, "s3": 5, "s7": 3, "s5": 6, "s8": 1, "s6": 3}
    assert successes == {"s1": 6, "s2": 2, "s3": 4, "s7": 2, "s5": 6, "s6": 1, "s8": 0}
    assert table.trajectories == 8
