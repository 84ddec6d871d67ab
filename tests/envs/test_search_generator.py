"""Generated worlds: unique answers, real hops, disjoint splits, solvable by reading."""

from __future__ import annotations

import itertools
import re

import pytest
from search_data import generated, play

from agentbench_rl.envs.search.answers import normalise
from agentbench_rl.envs.search.generator import RELATIONS, World, generate_questions, generate_world
from agentbench_rl.envs.search.index import Library
from agentbench_rl.types import AgentRLError

SPLITS = ("train", "validation", "test")
HOPS = (1, 2, 3, 4)
FACT = re.compile(r"(\w+): ([^;.]+)[;.]")


def answers_by_brute_force(pages: dict[str, str], question: str) -> list[str]:
    """Every value at the end of a path of facts, told by the pages alone, that reads as the question does."""
    facts = {title: FACT.findall(text) for title, text in pages.items()}
    found = []
    for start in facts:
        if not question.endswith(f" of {start}?"):
            continue
        paths: list[tuple[str, tuple[str, ...]]] = [(start, ())]
        for _ in range(max(HOPS)):
            paths = [(value, (*told, rel)) for name, told in paths for rel, value in facts.get(name, ())]
            for value, told in paths:
                wanted = f"is the {' of the '.join(reversed(told))} of {start}?"
                if question.removeprefix("Who ").removeprefix("What ") == wanted:
                    found.append(value)
    return found


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(3, "test", 200)


def test_every_answer_is_the_only_one(world: World) -> None:
    pages = {page.title: page.text for page in world.passages()}
    for question in generate_questions([world], 3, "test", 80, HOPS)[0]:
        assert answers_by_brute_force(pages, question.question) == list(question.answers), question


def test_no_question_tells_its_answer_or_a_name_on_the_way(world: World) -> None:
    titles = {page.id: page.title for page in world.passages()}
    for question in generate_questions([world], 3, "test", 200, HOPS)[0]:
        asked = normalise(question.question)
        assert normalise(question.answers[0]) not in asked
        assert [titles[gold] in question.question for gold in question.gold] == [True] + [False] * (
            len(question.gold) - 1
        )
        assert question.type == f"{len(question.gold)}hop"


def test_the_question_as_the_only_query_misses_the_answer_page_of_most_questions(world: World) -> None:
    library = Library(world.passages())
    found = dict.fromkeys(HOPS, 0)
    asked = generate_questions([world], 3, "test", 200, HOPS)[0]
    for question in asked:
        shown = {library.passages[number].id for number in library.search(question.question, 3)}
        found[len(question.gold)] += question.gold[-1] in shown
    assert found[1] >= 45
    assert found[2] + found[3] + found[4] <= 0.2 * 150


def test_worlds_of_splits_share_no_entity_and_no_content() -> None:
    suites = generated(dict.fromkeys(SPLITS, 60))
    for first, second in itertools.combinations(SPLITS, 2):
        assert not set(generate_world(0, first, 400).kinds) & set(generate_world(0, second, 400).kinds)
        hashes = [{task.content_hash for task in suites.tasks(split)} for split in (first, second)]
        assert not hashes[0] & hashes[1]
    assert all(len({task.content_hash for task in suites.tasks(split)}) == 60 for split in SPLITS)


def test_generation_is_a_function_of_the_seed_and_more_questions_begin_with_the_fewer() -> None:
    first, again, other = generated({"train": 30}), generated({"train": 30}), generated({"train": 30}, seed=1)
    assert first.tasks("train") == again.tasks("train")
    assert not {t.content_hash for t in first.tasks("train")} & {t.content_hash for t in other.tasks("train")}
    assert generated({"train": 50}).tasks("train")[:30] == first.tasks("train")


def test_numbers_of_hops_take_turns() -> None:
    types = [task.task_type for task in generated({"test": 30}, hops=(2, 4)).tasks("test")]
    assert types == ["2hop", "4hop"] * 15


def test_every_entity_has_a_page_and_every_relation_a_value(world: World) -> None:
    assert {page.title for page in world.passages()} == set(world.kinds)
    for name, kind in world.kinds.items():
        assert list(world.facts[name]) == list(RELATIONS[kind])
        assert name not in world.facts[name].values()


def test_the_largest_world_has_names_enough_in_every_split() -> None:
    for split in SPLITS:
        assert len(generate_world(0, split, 3000).kinds) == 3000


def test_worlds_of_a_split_tell_different_facts_and_share_the_questions_evenly() -> None:
    worlds = [generate_world(0, "train", 200, number) for number in range(3)]
    both = set(worlds[0].kinds) & set(worlds[1].kinds)
    assert both
    assert all(worlds[0].facts[name] != worlds[1].facts[name] for name in both)
    dealt = generate_questions(worlds, 0, "train", 32, (1, 2))
    assert [len(own) for own in dealt] == [12, 10, 10]
    assert {question.type for question in dealt[2]} == {"1hop", "2hop"}
    one, three = (generated({"train": 32}, hops=(1, 2), entities=200, worlds=n).tasks("train") for n in (1, 3))
    assert [task.task_id for task in three] == [task.task_id for task in one]
    assert one[:2] == three[:2]
    assert one[2] != three[2]


def test_too_many_questions_for_a_world_are_refused() -> None:
    with pytest.raises(AgentRLError, match=r"too few questions of 1 hops.*raise entities"):
        generated({"train": 500}, entities=20, hops=(1,))


@pytest.mark.parametrize("top_k", [1, 3])
def test_the_reader_solves_generated_questions_by_what_it_was_shown(top_k: int) -> None:
    suite = generated({"train": 40, "test": 80}, entities=300, hops=HOPS, top_k=top_k)
    won = searches = hops = 0
    for split in ("train", "test"):
        for task in suite.tasks(split):
            _, result, steps = play(suite, task, "scripted")
            if result is not None and result.success:
                won += 1
                searches += steps - 1
                hops += int(task.task_type[0])
    assert won >= 0.95 * 120
    assert searches >= 0.95 * hops


def test_the_reader_gives_up_when_its_search_shows_nothing_of_use() -> None:
    suite = generated({"test": 3}, passage_characters=5)
    _, result, steps = play(suite, suite.tasks("test")[0], "scripted")
    assert result is not None
    assert not result.success
    assert steps <= 2
