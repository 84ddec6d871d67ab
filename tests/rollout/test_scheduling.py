"""The deterministic scheduler: which requests share a batch, ids, seeds and the order of rows."""

from __future__ import annotations

from collections import Counter

from fakes import play, specs
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.rollout.episode import request_seed

LENGTHS = {"a": 1, "b": 4, "c": 2, "d": 1, "e": 3}


def script(session: str, step: int) -> str:
    return "win" if step + 1 == LENGTHS[session.split(".")[2]] else "look"


def test_a_finished_episode_leaves_the_batch_at_once_and_the_next_takes_its_slot() -> None:
    _, sampler = play(script, specs(*LENGTHS), slots=2)
    names = [[session.split(".")[2] for session in batch] for batch in sampler.batches]
    assert names == [["a", "b"], ["b", "c"], ["b", "c"], ["b", "d"], ["e"], ["e"], ["e"]]
    assert Counter(sampler.released) == Counter(spec.episode_id for spec in specs(*LENGTHS))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(sorted(LENGTHS)), min_size=1, unique=True), st.integers(1, 6), st.integers(1, 3))
def test_every_episode_is_played_once_and_stands_in_the_order_of_the_specs(
    names: list[str], slots: int, group_size: int
) -> None:
    asked = specs(*names, group_size=group_size)
    rollouts, sampler = play(script, asked, slots=slots)
    assert [episode["episode_id"] for episode in rollouts.episodes] == [spec.episode_id for spec in asked]
    expected = [(spec.tree_id, step) for spec in asked for step in range(LENGTHS[spec.task.task_id])]
    assert [(turn["tree_id"], turn["step"]) for turn in rollouts.turns] == expected
    assert len({turn["turn_id"] for turn in rollouts.turns}) == len(rollouts.turns)
    assert max(map(len, sampler.batches)) <= slots
    assert rollouts.model_calls == len(rollouts.turns)
    assert sum(tick["requests"] for tick in rollouts.timings) == len(rollouts.turns)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6))
def test_rows_and_request_seeds_do_not_depend_on_the_number_of_slots(slots: int) -> None:
    one, alone = play(script, specs(*LENGTHS, group_size=2), slots=1)
    many, together = play(script, specs(*LENGTHS, group_size=2), slots=slots)
    assert (one.turns, one.episodes) == (many.turns, many.episodes)
    assert sorted(request.seed for request in alone.requests) == sorted(request.seed for request in together.requests)


def test_ids_and_seeds_are_derived_from_run_iteration_task_and_replica() -> None:
    rollouts, sampler = play(script, specs("b", group_size=2))
    assert [turn["turn_id"] for turn in rollouts.turns[:2]] == ["s0.i0.b.t0.b0.0", "s0.i0.b.t0.b0.1"]
    assert {turn["group_id"] for turn in rollouts.turns} == {"s0.i0.b"}
    assert {turn["tree_id"] for turn in rollouts.turns} == {"s0.i0.b.t0", "s0.i0.b.t1"}
    ids = {(request.session, request.seed) for request in sampler.requests}
    assert ids == {(f"s0.i0.b.t{r}.b0", request_seed(f"s0.i0.b.t{r}.b0", s)) for r in range(2) for s in range(4)}
    assert len({seed for _, seed in ids}) == 8
    assert request_seed("s0.i0.b.t0.b0", 0) == 2396119444686660878


def test_turns_form_a_chain_and_hold_what_was_sampled_and_seen() -> None:
    rollouts, sampler = play(script, specs("e"))
    turns = rollouts.turns
    assert [turn["parent_id"] for turn in turns] == [None, turns[0]["turn_id"], turns[1]["turn_id"]]
    assert [turn["next_state_key"] for turn in turns[:-1]] == [turn["state_key"] for turn in turns[1:]]
    assert [turn["observation"] for turn in turns] == ["e: 1", "e: 2", "e: 3"]
    whole: list[int] = []
    for turn, request in zip(turns, sampler.requests, strict=True):
        whole += turn["prompt_ids"]
        assert whole == request.prompt_ids
        whole += turn["response_ids"]
        assert len(turn["response_ids"]) == len(turn["response_logprobs"])
    (episode,) = rollouts.episodes
    assert episode["sampled_tokens"] + episode["prompt_tokens"] == len(whole)
    assert episode["leaf_turn_id"] == turns[-1]["turn_id"]
    assert {(turn["policy"], turn["policy_version"]) for turn in turns} == {("policy", 4)}


def test_equal_observations_have_equal_anchors() -> None:
    rollouts, _ = play(script, specs("b", group_size=2))
    anchors = [(turn["step"], turn["anchor_key"]) for turn in rollouts.turns]
    assert len(set(anchors)) == len({anchor for _, anchor in anchors}) == 4
