"""Dynamic sampling and greedy baselines: which groups are kept, what is counted, ids, order and repeatability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from fakes import World, play, task
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config.topology import ResampleConfig
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import EpisodeSpec, specs_of_groups
from agentbench_rl.rollout.resampling import Resampled, resample
from agentbench_rl.stages.rollout import rounds_of_tasks
from agentbench_rl.types import AgentRLError

#: The two replicas of a task: of `d…` and `f…` the first is won, of `w…` both, of `l…` none.
PANEL = ("l1", "d1", "w1", "d2", "d3", "l2")


def script(session: str, step: int) -> str:
    name, replica = session.split(".")[-3:-1]
    won = name[0] == "w" or (name[0] in "df" and replica == "t0")
    return "win" if won else "lose"


def rounds(*names: str, size: int = 2, greedy: bool = False) -> Iterator[list[EpisodeSpec]]:
    """Rounds of `size` tasks; ids carry the round, as those of the stage do."""
    for number, start in enumerate(range(0, len(names), size)):
        prefix = f"s0.i0.r{number}" if number else "s0.i0"
        yield specs_of_groups([task(name) for name in names[start : start + size]], 2, prefix, greedy_baseline=greedy)


def resampled(
    *names: str, size: int = 2, world: World | None = None, greedy: bool = False, **options: object
) -> Resampled:
    return resample(
        rounds(*names, size=size, greedy=greedy),
        lambda specs: play(script, specs, world=world)[0],
        2,
        ResampleConfig.model_validate(options),
    )


def groups(rollouts: Rollouts) -> list[str]:
    return list(dict.fromkeys(episode["group_id"] for episode in rollouts.episodes))


def test_rounds_go_on_until_enough_groups_have_different_returns() -> None:
    result = resampled(*PANEL)
    assert groups(result.rollouts) == ["s0.i0.d1", "s0.i0.r1.d2"]
    assert {turn["group_id"] for turn in result.rollouts.turns} == set(groups(result.rollouts))
    assert (result.rounds, result.groups, result.informative) == (2, 4, 2)


def test_the_kept_groups_of_the_first_round_are_those_of_the_plain_rollout() -> None:
    plain, _ = play(script, next(rounds(*PANEL)))
    result = resampled(*PANEL)
    mine = [turn for turn in plain.turns if turn["group_id"] == "s0.i0.d1"]
    assert [turn for turn in result.rollouts.turns if turn["group_id"] == "s0.i0.d1"] == mine != []


def test_one_informative_round_is_the_plain_rollout() -> None:
    plain, _ = play(script, next(rounds("d1", "d2")))
    result = resampled("d1", "d2", "d3", "l1")
    assert (result.rollouts.turns, result.rollouts.episodes) == (plain.turns, plain.episodes)
    assert (result.rollouts.cost, result.rollouts.endings) == (plain.cost, plain.endings)


def test_discarded_groups_are_paid_for_and_counted() -> None:
    rollouts = resampled(*PANEL).rollouts
    assert len(rollouts.episodes) == 4
    assert [episode["group_id"] for episode in rollouts.discarded] == ["s0.i0.l1"] * 2 + ["s0.i0.r1.w1"] * 2
    assert rollouts.model_calls == rollouts.cost["environment_steps"] == sum(rollouts.endings.values()) == 8
    assert rollouts.cost["sampled_tokens"] > sum(episode["sampled_tokens"] for episode in rollouts.episodes)
    assert [tick["tick"] for tick in rollouts.timings] == list(range(len(rollouts.timings)))


def test_surplus_groups_are_trimmed_in_the_order_of_play_unless_they_are_wanted() -> None:
    names = ("l1", "d1", "d2", "d3")
    trimmed, whole = resampled(*names), resampled(*names, trim=False)
    assert groups(trimmed.rollouts) == ["s0.i0.d1", "s0.i0.r1.d2"]
    assert groups(whole.rollouts) == ["s0.i0.d1", "s0.i0.r1.d2", "s0.i0.r1.d3"]
    assert trimmed.rollouts.cost == whole.rollouts.cost


def test_the_last_round_is_kept_whole_when_tries_are_exhausted() -> None:
    result = resampled("l1", "d1", "w1", "l2", "d2", "d3", max_tries=2, trim=False)
    assert groups(result.rollouts) == ["s0.i0.d1", "s0.i0.r1.w1", "s0.i0.r1.l2"]
    assert groups(resampled("l1", "w1", max_tries=1).rollouts) == ["s0.i0.l1", "s0.i0.w1"]


def test_exhausted_tries_stop_the_run_where_that_is_asked_for() -> None:
    with pytest.raises(AgentRLError, match=r"1 of 2 groups are informative after 2 rounds.*max_tries"):
        resampled("l1", "d1", "w1", "l2", "d2", "d3", max_tries=2, exhausted="raise")
    assert resampled("l1", "d1", "d2", "l2", max_tries=2, exhausted="raise").informative == 2


def test_faulty_episodes_do_not_make_a_group_informative() -> None:
    assert groups(resampled("f1", "d1", "d2", "l1").rollouts) == ["s0.i0.f1", "s0.i0.d1"]
    for faults in (1, 2):
        result = resampled("f1", "d1", "d2", "l1", world=World(faults={"reset f1": faults}))
        assert groups(result.rollouts) == ["s0.i0.d1", "s0.i0.r1.d2"]


def test_greedy_episodes_are_marked_are_played_at_temperature_0_and_end_their_group() -> None:
    asked = next(rounds("d1", "w1", greedy=True))
    rollouts, sampler = play(script, asked)
    greedy = [spec.episode_id for spec in asked if spec.greedy]
    assert greedy == ["s0.i0.d1.greedy.b0", "s0.i0.w1.greedy.b0"]
    heat = {request.session: request.temperature for request in sampler.requests}
    assert {session for session, value in heat.items() if value == 0.0} == set(greedy)
    assert set(heat.values()) == {0.0, 1.0}
    marked = {turn["turn_id"].rsplit(".", 1)[0] for turn in rollouts.turns if turn["chains_greedy"]}
    assert marked == set(greedy)
    assert [e["group_id"] for e in rollouts.episodes] == ["s0.i0.d1"] * 3 + ["s0.i0.w1"] * 3


def test_sampled_episodes_beside_a_greedy_one_are_those_of_the_plain_rollout() -> None:
    plain, _ = play(script, next(rounds("d1", "w1")))
    rollouts, _ = play(script, next(rounds("d1", "w1", greedy=True)))
    sampled = [
        {k: v for k, v in turn.items() if k != "chains_greedy"} for turn in rollouts.turns if not turn["chains_greedy"]
    ]
    assert sampled == plain.turns
    assert not any("chains_greedy" in turn for turn in plain.turns)


def test_a_greedy_episode_does_not_make_its_group_informative() -> None:
    """Both replicas of `w` win, its greedy episode too; with a script that loses greedily nothing changes."""

    def greedy_loses(session: str, step: int) -> str:
        return "lose" if ".greedy." in session else script(session.replace("greedy", "t1"), step)

    result = resample(
        rounds("w1", "d1", "d2", "l1", greedy=True), lambda specs: play(greedy_loses, specs)[0], 2, ResampleConfig()
    )
    assert groups(result.rollouts) == ["s0.i0.d1", "s0.i0.r1.d2"]
    assert len(result.rollouts.episodes) == 6


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 5), st.data())
def test_no_task_is_played_twice_while_unplayed_ones_are_left(
    size: int, seed: int, iteration: int, data: st.DataObject
) -> None:
    panel = [task(f"t{number}") for number in range(size)]
    count = data.draw(st.integers(1, size))
    source = rounds_of_tasks(panel, count, seed, iteration)
    played = [next(source) for _ in range(2 * size // count + 2)]
    assert all(len(set(tasks)) == count for tasks in played)
    flat = [one for tasks in played for one in tasks]
    for passed in range(0, len(flat) - size + 1, size):
        assert set(flat[: passed + size]) == set(panel)
        counts = [flat[: passed + size].count(one) for one in panel]
        assert max(counts) - min(counts) <= 1
    again = rounds_of_tasks(panel, count, seed, iteration)
    assert [next(again) for _ in played] == played


def test_a_task_of_a_further_round_is_played_under_new_ids() -> None:
    asked: list[str] = []

    def remember(specs: Sequence[EpisodeSpec]) -> Rollouts:
        asked.extend(spec.episode_id for spec in specs)
        return play(script, specs)[0]

    result = resample(rounds("l1", "d1", "l1", "d1"), remember, 2, ResampleConfig())
    assert len(set(asked)) == len(asked) == 8
    turns = [turn["turn_id"] for turn in result.rollouts.turns]
    assert len(set(turns)) == len(turns) == 4
