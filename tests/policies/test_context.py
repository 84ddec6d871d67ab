"""Prompts from observations, actions from responses."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import PromptConfig
from agentbench_rl.policies.context import EpisodeContext, format_action, parse_action


class LetterCodec:
    """One id per character, and ids below zero for what a chat template adds."""

    def open(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [-1, *(ord(c) for message in messages for c in f"{message['role'][0]}:{message['content']}")]

    def follow(self, user_text: str, *, finished: bool) -> list[int]:
        return [*([] if finished else [-2]), -1, *(ord(c) for c in user_text)]

    def read(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > 0)


CODEC = LetterCodec()
APPEND, WINDOW = ModelConfig(context="append"), ModelConfig(context="window", window_turns=2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=8), st.lists(st.integers(1, 99), max_size=4), st.booleans()), min_size=1))
def test_appended_prompts_are_all_added_and_sampled_ids_in_order(turns: list[tuple[str, list[int], bool]]) -> None:
    context = EpisodeContext(CODEC, PromptConfig(), APPEND)
    joined: list[int] = []
    for step, (observation, response, finished) in enumerate(turns):
        prompt = context.prompt(observation)
        joined += prompt.added_ids
        assert prompt.whole_ids == joined
        assert prompt.extends_parent == (step > 0)
        context.respond(response, finished, "act")
        joined += response


def test_an_unfinished_response_is_closed_by_the_next_prompt() -> None:
    context = EpisodeContext(CODEC, PromptConfig(), APPEND)
    context.prompt("first")
    context.respond([7], False, "act")
    assert context.prompt("second").added_ids[:2] == [-2, -1]
    context.respond([7], True, "act")
    assert context.prompt("third").added_ids[0] == -1


def test_windowed_prompts_hold_the_goal_and_the_last_turns_only() -> None:
    context = EpisodeContext(CODEC, PromptConfig(window="G {goal} H {history} O {observation}"), WINDOW)
    assert CODEC.read(context.prompt("start").whole_ids) == "u:start"
    for step in range(4):
        context.respond([1], True, f"act{step}")
        prompt = context.prompt(f"seen{step}")
        assert not prompt.extends_parent
        assert prompt.added_ids == prompt.whole_ids
    history = "seen1\n> act2\nseen2\n> act3"
    assert CODEC.read(prompt.whole_ids) == f"u:G start H {history} O seen3"


@pytest.mark.parametrize("model", [APPEND, WINDOW], ids=["append", "window"])
def test_braces_in_observations_survive(model: ModelConfig) -> None:
    hostile = "a {observation} {goal} {0} {{x}} % \\1 {unknown}"
    context = EpisodeContext(CODEC, PromptConfig(system="Be {brief}."), model)
    assert CODEC.read(context.prompt(hostile).whole_ids) == f"s:Be {{brief}}.u:{hostile}"
    context.respond([1], True, hostile)
    assert hostile in CODEC.read(context.prompt(hostile).added_ids)


def test_admissible_actions_stand_one_a_line_where_the_template_asks_for_them() -> None:
    context = EpisodeContext(CODEC, PromptConfig(first="{observation} | {admissible}"), APPEND)
    assert CODEC.read(context.prompt("room", ["look", "wait"]).whole_ids) == "u:room | look\nwait"


@pytest.mark.parametrize(
    ("text", "finished", "expected"),
    [
        ("go to desk 1", True, ("go to desk 1", True)),
        ("  look \n", True, ("look", True)),
        ("go to desk", False, ("go to desk", False)),
        ("", True, ("", False)),
        ("   ", True, ("", False)),
        ("look\ntake pen", True, ("look\ntake pen", False)),
    ],
)
def test_plain_responses(text: str, finished: bool, expected: tuple[str, bool]) -> None:
    assert parse_action(text, finished, "plain") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>hm</think><action>Go to Desk 1</action>", ("go to desk 1", True)),
        ("<think>two\nlines</think>\n<action> look\n</action>", ("look", True)),
        ("<action>look</action>", ("look", False)),
        ("<think>hm</think> look", ("<think>hm</think> look", False)),
        ("x" * 40 + " Open Drawer 1", ("x" * 16 + " open drawer 1", False)),
        ("<think>hm 看</think><action>look</action>", ("look", False)),
        ("<think>a</think><action>look</action><action>wait</action>", ("look", True)),
        ("", ("", False)),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_tagged_responses_as_in_verl_agent(text: str, expected: tuple[str, bool], finished: bool) -> None:
    assert parse_action(text, finished, "tags") == expected


@pytest.mark.parametrize("action_format", ["plain", "tags"])
def test_a_demonstrated_action_is_parsed_as_itself(action_format: str) -> None:
    assert parse_action(format_action("take pen 1", action_format), True, action_format) == ("take pen 1", True)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<action>", "</action>", "a", "\n", "<"]), max_size=12))
@settings(max_examples=200, deadline=None)
def test_tags_are_found_where_a_lazy_pattern_finds_them(parts: list[str]) -> None:
    text = "".join(parts)
    found = re.search(r"<action>(.*?)</action>", text, re.DOTALL)
    action, valid = parse_action(text, True, "tags")
    assert valid == (found is not None and re.search(r"<think>(.*?)</think>", text, re.DOTALL) is not None)
    assert action == (found[1] if found else text[-30:]).strip().lower()


def test_a_response_of_many_unclosed_tags_is_read_at_once() -> None:
    began = time.process_time()
    assert parse_action("<think><action>" * 20_000, True, "tags")[1] is False
    assert time.process_time() - began < 1.0
