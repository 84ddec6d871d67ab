"""Exact match, F1 and the action grammar."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.envs.search.actions import Action, information, parse
from agentbench_rl.envs.search.answers import exact_match, f1_score, normalise
from agentbench_rl.envs.search.corpus import Passage


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles", "beatles"),
        ("  An   apple, a day!  ", "apple day"),
        ("U.S.A.", "usa"),
        ("don't", "dont"),
        ("theatre of another", "theatre of another"),
        ("well-known", "wellknown"),
        ("Zoë\tKravitz", "zoë kravitz"),
        ("A", "a"),
        ("?", "?"),
        ("", ""),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("answer", "golds", "em", "f1"),
    [
        ("the Beatles.", ["Beatles"], True, 1.0),
        ("Paul McCartney", ["Sir Paul McCartney"], False, 0.8),
        ("in Paris, France", ["Paris"], False, 0.5),
        ("Paris", ["London", "paris"], True, 1.0),
        ("Rome", ["Paris"], False, 0.0),
        ("a b b c", ["b b d"], False, 2 / 3),
        ("yes", ["yes"], True, 1.0),
        ("yes it is", ["yes"], False, 0.0),
        ("no", ["no one"], False, 0.0),
        ("A", ["a"], True, 1.0),
        ("?", ["a"], False, 0.0),
        ("", ["Paris"], False, 0.0),
    ],
)
def test_exact_match_and_f1(answer: str, golds: list[str], em: bool, f1: float) -> None:
    assert exact_match(answer, golds) is em
    assert f1_score(answer, golds) == pytest.approx(f1)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_f1_is_symmetric_and_one_for_exact_matches(first: str, second: str) -> None:
    forward, backward = f1_score(first, [second]), f1_score(second, [first])
    assert forward == pytest.approx(backward)
    assert 0.0 <= forward <= 1.0
    assert not exact_match(first, [second]) or forward == 1.0


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<search> Mount Aran </search>", Action("search", "Mount Aran")),
        ("<answer>Cestia</answer>", Action("answer", "Cestia")),
        ("<think>hm <b></think><search>a\nb</search>", Action("search", "a\nb")),
        ("<search>first</search> then <answer>no</answer>", Action("search", "first")),
        ("<answer>x</answer><search>later</search>", Action("answer", "x")),
        ("<search>open <answer>x</answer>", Action("answer", "x")),
        ("<search>a</answer></search>", Action("search", "a</answer>")),
        ("<search>ö 漢字 🎈</search>", Action("search", "ö 漢字 🎈")),
        ("<search></search>", None),
        ("<answer>  \n </answer>", None),
        ("<search>never closed", None),
        ("<Search>x</Search>", None),
        ("search[x]", None),
        ("", None),
        ("</search><search>", None),
    ],
)
def test_grammar_takes_the_first_whole_pair_of_tags(response: str, action: Action | None) -> None:
    assert parse(response) == action


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "a", " "]), max_size=8))
def test_the_grammar_is_that_of_search_r1(parts: list[str]) -> None:
    match = re.search(r"<(search|answer)>(.*?)</\1>", "".join(parts), re.DOTALL)
    text = match.group(2).strip() if match else ""
    assert parse("".join(parts)) == (Action(match.group(1), text) if match and text else None)  # type: ignore[arg-type]


def test_a_response_of_tags_alone_is_read_at_once() -> None:
    started = time.perf_counter()
    assert parse("<search>" * 20_000 + "<answer>" * 20_000) is None
    assert time.perf_counter() - started < 1


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_an_action_or_none(text: str) -> None:
    action = parse(text)
    assert action is None or (action.text and action.text == action.text.strip())


def test_passages_are_shown_in_one_line_each_and_cut() -> None:
    passages = [Passage("p1", "One", "a\nb  c"), Passage("p2", "Two", "x" * 50)]
    assert information(passages, 10) == (
        "<information>Doc 1(Title: One) a b c\nDoc 2(Title: Two) xxxxxxxxxx</information>"
    )
