"""The best-first search: order of expansion, counts, caps, faults, and a search that is resumed in the middle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tree_world import Anywhere, Journey, Places, tasks, wander

from agentbench_rl.algorithms.state_table import StateTable, state_key
from agentbench_rl.config.topology import Expand, StateScore
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec, Row, roots_of_trees
from agentbench_rl.rollout.expand import Search
from agentbench_rl.rollout.expansion_metrics import expansion_metrics
from agentbench_rl.types import AgentRLError, InfrastructureError

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


NAMES = ("s1", "s2", "s3")
WIDE = expand(SCORE.model_copy(update={"alpha": 2.0}), max_actions=4, max_responses=24, max_leaves=6)


def begin(settings: Expand = WIDE, names: tuple[str, ...] = NAMES, table: StateTable | None = None) -> Search:
    return Search.begin(roots_of_trees(tasks(*names), 1, "s0.i9"), settings, table or StateTable(), 9)


def test_a_round_samples_at_one_state_of_every_tree_and_its_file_holds_whole_paths() -> None:
    played = run(begin(), Journey(wander, Places(Anywhere())))
    assert len(played.rounds) > 3
    ids = [row["turn_id"] for row in played.turns]
    assert len(set(ids)) == len(ids)
    for number, rows in enumerate(played.rounds):
        held = {row["turn_id"] for row in rows}
        assert len(held) == len(rows)
        assert all(row["parent_id"] is None or row["parent_id"] in held for row in rows)
        new = [row for row in rows if row["expand_round"] == number]
        states = {(row["tree_id"], row["parent_id"]) for row in new}
        assert len(states) == len({row["tree_id"] for row in new})
        for state in states:
            siblings = [row for row in new if (row["tree_id"], row["parent_id"]) == state]
            assert {row["expand_allocation"] for row in siblings} == {len(siblings)}
        ended = {row["turn_id"] for row in new if row["done"]}
        assert {episode["leaf_turn_id"] for episode in played.episodes[number]} == ended
    by_tree = Counter(row["tree_id"] for row in played.turns)
    leaves = Counter(episode["tree_id"] for episodes in played.episodes for episode in episodes)
    assert max(by_tree.values()) <= 24
    assert all(count < 6 + 4 for count in leaves.values())


def test_the_best_child_is_expanded_first_and_every_live_one_in_its_turn() -> None:
    """New places are paid more than a return to the first, which comes last."""
    answers = {0: "s1", 1: "hall", 2: "attic", 3: "hall"} | dict.fromkeys(range(4, 24), "pit")
    orders = {"distinct": ["s1", "hall", "attic", "s1"], "all": ["s1", "hall", "attic", "hall", "s1"]}
    for children, order in orders.items():
        settings = WIDE.model_copy(update={"children": children, "max_leaves": 30})
        played = run(begin(settings, ("s1",)), Journey(by_branch(answers), Places(Anywhere())))
        assert [row["state_key"] for row in played.turns if row["branch"] % 4 == 0] == order


def test_scores_are_frozen_within_a_round() -> None:
    """What happens to the table while a round is played changes neither its groups nor its rewards."""
    table = StateTable()
    journey, disturbed = (Journey(wander, Places(Anywhere())) for _ in range(2))

    def play(specs: Sequence[EpisodeSpec]) -> Rollouts:
        for place in ("s1", "hall", "attic", "cellar", "shed", "yard", "home", "pit"):
            if specs[0].turns:
                table.totals[key(place)], table.successes[key(place)] = 1000.0, 990.0
        return disturbed.play(specs)

    quiet, loud = begin(names=("s1",)), begin(names=("s1",), table=table)
    expected, found = quiet.round(journey.play), loud.round(play)
    assert journey.sizes == disturbed.sizes
    assert [row["expand_reward"] for row in found.turns] == [row["expand_reward"] for row in expected.turns]
    assert len(loud.round(disturbed.play).turns) > 0
    assert disturbed.sizes[-1] == 1


def test_a_search_that_is_resumed_after_any_round_goes_on_as_if_nothing_had_happened() -> None:
    table = StateTable()
    whole = run(begin(table=table), Journey(wander, Places(Anywhere())))
    assert len(whole.rounds) > 4
    for stop in range(1, len(whole.rounds)):
        half, journey = StateTable(), Journey(wander, Places(Anywhere()))
        search = begin(table=half)
        rows = [row for _ in range(stop) for row in search.round(journey.play).turns]
        state = json.loads(json.dumps(search.state()))
        turns = list({row["turn_id"]: row for row in rows}.values())
        saved = StateTable.from_table(half.to_table({"seed": 0}), {"seed": 0})
        search.close()
        roots = roots_of_trees(tasks(*NAMES), 1, "s0.i9")
        resumed = Search.resume(state, roots, turns, WIDE, saved, 9, journey.rebuild)
        assert resumed.rounds == stop
        assert journey.rebuilt == []
        while not resumed.finished:
            expected = resumed.rounds
            rollouts = resumed.round(journey.play)
            assert rollouts.turns == whole.rounds[expected]
            assert rollouts.episodes == whole.episodes[expected]
            assert rollouts.metrics == whole.metrics[expected]
        assert resumed.rounds == len(whole.rounds)
        assert saved == table
        frontier = {node["turn_id"] for tree in state["trees"] for node in tree["stack"]}
        assert len(journey.rebuilt) == len(set(journey.rebuilt))
        assert set(journey.rebuilt) <= frontier


def test_returns_do_not_depend_on_where_a_search_was_resumed() -> None:
    """Nine times 0.1 is another number in single precision, in which files hold rewards."""
    path = WIDE.model_copy(update={"max_actions": 2, "max_responses": 18, "backtrack": False})
    returns = []
    for resumed in (False, True):
        journey = Journey(lambda session: f"room {session.rpartition('.b')[2]}", Places(step_reward=0.1), max_turns=9)
        search, rows, table = begin(path, ("s1",)), list[Row](), StateTable()
        while not search.finished:
            number, rollouts = search.rounds, search.round(journey.play)
            rows += [row for row in rollouts.turns if row["expand_round"] == number]
            if resumed:
                stored = [row | {"reward": float(np.float32(row["reward"]))} for row in rows]
                roots = roots_of_trees(tasks("s1"), 1, "s0.i9")
                search = Search.resume(search.state(), roots, stored, path, table, 9, journey.rebuild)
        returns.append([episode["return"] for episode in rollouts.episodes])
        assert bool(journey.rebuilt) == resumed
        assert journey.world.open == 0
    assert returns[0] == returns[1] == [pytest.approx(0.9)] * 2


def test_a_state_that_is_not_the_stored_one_when_it_is_rebuilt_is_a_fault() -> None:
    journey = Journey(wander, Places(Anywhere()))
    search, table = begin(names=("s1",)), StateTable()
    rows = search.round(journey.play).turns
    state, roots = search.state(), roots_of_trees(tasks("s1"), 1, "s0.i9")
    place = next(row["next_state_key"] for row in rows if row["turn_id"] == state["trees"][0]["stack"][-1]["turn_id"])
    journey.world.strange.add(place)
    with pytest.raises(InfrastructureError, match=r"observation was you are in .*, and is a strange place"):
        Search.resume(state, roots, rows, WIDE, table, 9, journey.rebuild).round(journey.play)
    journey.world.strange.clear()
    state["trees"][0]["stack"][-1]["digest"] = "another"
    with pytest.raises(InfrastructureError, match="the state after it differs"):
        Search.resume(state, roots, rows, WIDE, table, 9, journey.rebuild).round(journey.play)
    assert journey.world.open == 0


def test_the_state_of_another_search_is_refused() -> None:
    journey = Journey(wander, Places(Anywhere()))
    search = begin(names=("s1",))
    rows = search.round(journey.play).turns
    with pytest.raises(AgentRLError, match="of other trees"):
        Search.resume(
            search.state(), roots_of_trees(tasks("s2"), 1, "s0.i9"), rows, WIDE, StateTable(), 9, journey.rebuild
        )
    with pytest.raises(AgentRLError, match="not among the rollouts"):
        Search.resume(
            search.state(), roots_of_trees(tasks("s1"), 1, "s0.i9"), [], WIDE, StateTable(), 9, journey.rebuild
        )


def test_a_closed_state_is_dropped_and_the_search_ends_with_the_last_open_one() -> None:
    table = StateTable()
    for place in ("hall", "attic"):
        table.totals[key(place)] = 30.0
    answers = {0: "hall", 1: "attic", 2: "cellar", 3: "pit"} | dict.fromkeys(range(4, 24), "pit")
    played = run(begin(names=("s1",), table=table), Journey(by_branch(answers), Places(Anywhere())))
    assert [rows[-1]["state_key"] for rows in played.rounds] == ["s1", "cellar"]
    assert played.metrics[0]["allocation_4"] == 1.0
    search = begin(WIDE.model_copy(update={"score": SCORE.model_copy(update={"gate_root": True})}), ("s1",), _closed())
    journey = Journey(wander)
    assert not search.finished
    rollouts = search.round(journey.play)
    assert (rollouts.turns, rollouts.metrics["allocation_0"], search.finished) == ([], 1.0, True)


def _closed() -> StateTable:
    return StateTable({key("s1"): 30.0}, {key("s1"): 0.0})


def test_a_fault_leaves_its_group_incomplete_and_its_siblings_are_searched_on() -> None:
    """A state without a snapshot is no fault of the response that led there, but cannot be expanded."""
    answers = {0: "hall", 1: "attic", 2: "shed", 3: "home"} | dict.fromkeys(range(4, 24), "pit")
    world = Places(Anywhere(), lost={("s1", "attic")}, torn={"shed"})
    table = StateTable()
    search = begin(names=("s1",), table=table)
    first = search.round(Journey(by_branch(answers), world).play)
    rewards = {row["action"]: row["expand_reward"] for row in first.turns}
    assert [place for place, reward in rewards.items() if reward is None] == ["attic"]
    assert {row["expand_allocation"] for row in first.turns} == {4}
    assert (first.metrics["informative_groups"], first.metrics["boundaries_without_snapshot"]) == (0.0, 1.0)
    assert (table.trajectories, first.metrics["leaves"]) == (1, 1.0)
    assert [len(tree["stack"]) for tree in search.state()["trees"]] == [1]
    second = search.round(Journey(by_branch(answers), world).play)
    assert [row["state_key"] for row in second.turns] == ["s1", *["hall"] * 4]
    assert world.open == 0


def test_a_task_that_cannot_be_reset_has_no_tree_and_counts_as_a_fault() -> None:
    world = Places(Anywhere(), lost={("", "s2")})
    table = StateTable()
    played = run(begin(table=table), Journey(wander, world))
    assert {row["task_id"] for row in played.turns} == {"s1", "s3"}
    (fault,) = [episode for episode in played.episodes[0] if episode["task_id"] == "s2"]
    assert (fault["ending"], fault["success"]) == ("env_error", None)
    assert table.trajectories == sum(len(episodes) for episodes in played.episodes) - 1


def test_a_task_whose_first_state_has_no_snapshot_has_no_tree_and_is_told() -> None:
    played = run(begin(), Journey(wander, Places(Anywhere(), torn={"s2"})))
    assert {row["task_id"] for row in played.turns} == {"s1", "s3"}
    assert played.metrics[0]["boundaries_without_snapshot"] == 1.0
    assert {metrics["boundaries_without_snapshot"] for metrics in played.metrics[1:]} == {0.0}


def test_a_state_whose_prompt_does_not_fit_is_one_leaf_and_no_success() -> None:
    answers = {0: "hall"} | dict.fromkeys(range(1, 30), "attic")
    first = begin(names=("s1",)).round(Journey(by_branch(answers)).play).turns[0]
    room = len(first["prompt_ids"]) + 16
    table = StateTable()
    search = begin(names=("s1",), table=table)
    played = run(search, Journey(by_branch(answers), max_context_tokens=room))
    endings = [episode["ending"] for episodes in played.episodes for episode in episodes]
    assert endings == ["truncated_tokens"] * 2
    leaves = [episode["leaf_turn_id"] for episodes in played.episodes for episode in episodes]
    assert len(set(leaves)) == 2
    assert all(leaf in {row["turn_id"] for row in played.turns} for leaf in leaves)
    assert (table.trajectories, table.success(key("s1")), table.total(key("hall"))) == (2, 0.0, 1.0)


def test_an_episode_that_reaches_its_last_turn_is_a_failed_leaf() -> None:
    table = StateTable()
    settings = WIDE.model_copy(update={"max_actions": 2})
    played = run(begin(settings, ("s1",), table), Journey(lambda session: session[-1], max_turns=2))
    assert {episode["ending"] for episodes in played.episodes for episode in episodes} == {"truncated_turns"}
    assert {row["step"] for row in played.turns} == {0, 1}
    assert table.trajectories == 4
    assert table.success(key("s1")) == 0.0


def test_metrics_tell_of_a_round_and_of_the_iteration() -> None:
    search, journey = begin(), Journey(wander, Places(Anywhere()))
    turns: list[Row] = []
    ended: list[list[Row]] = []
    leaves = 0.0
    while not search.finished:
        number = search.rounds
        rollouts = search.round(journey.play)
        new = [row for row in rollouts.turns if row["expand_round"] == number]
        metrics = rollouts.metrics
        assert sum(metrics[f"allocation_{size}"] for size in range(5)) == pytest.approx(1.0)
        assert metrics["step_reward"] == pytest.approx(sum(row["expand_reward"] for row in new) / len(new))
        turns += new
        leaves += metrics["leaves"]
        ended.append(rollouts.episodes)
    assert metrics["live_trees"] == 0.0
    assert leaves == sum(len(episodes) for episodes in ended) > 0
    whole = expansion_metrics(turns, WIDE, dropped=0)
    states = {row["state_key"] for row in turns} | {row["next_state_key"] for row in turns}
    assert whole["distinct_states"] == len(states)
    assert 0.0 < whole["informative_groups"] < 1.0


def test_a_snapshot_is_taken_of_every_state_that_may_be_expanded_and_of_no_other() -> None:
    search, journey = begin(), Journey(wander, Places(Anywhere()))
    for _ in range(3):
        before = search.rounds
        rollouts = search.round(journey.play)
        new = [row for row in rollouts.turns if row["expand_round"] == before]
        live = sum(not row["done"] for row in new)
        assert rollouts.cost["snapshots"] == live + (len(NAMES) if before == 0 else 0)
        assert rollouts.cost["forks"] == len(new)


def test_counts_decay_at_the_beginning_of_every_iteration_but_the_first() -> None:
    roots = roots_of_trees(tasks("s1"), 1, "s0.i1")
    for iteration, total in ((0, 30.0), (1, 29.4)):
        table = _closed()
        Search.begin(roots, WIDE, table, iteration)
        assert table.total(key("s1")) == pytest.approx(total)
