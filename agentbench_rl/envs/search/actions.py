"""The action grammar and the texts of Search-R1 (arXiv 2503.09516).

As there, the first `<search>query</search>` or `<answer>text</answer>` of a response counts and what stands around it
does not. Unlike there, an empty query or answer is outside the grammar.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from agentbench_rl.envs.search.corpus import Passage

#: What a response outside the grammar is told.
MALFORMED = "Invalid action. To search, write <search> query </search>. To answer, write <answer> text </answer>."
NOTHING_FOUND = "<information>No passage matches this query.</information>"
_KINDS: tuple[Literal["search", "answer"], ...] = ("search", "answer")


class Action(NamedTuple):
    """A well-formed action; `text` is not empty and has no outer white space."""

    kind: Literal["search", "answer"]
    text: str


def parse(response: str) -> Action | None:
    """Return the action of a response, or None when it has none."""
    start, action = len(response), None
    for kind in _KINDS:
        first = response.find(f"<{kind}>")
        end = response.find(f"</{kind}>", first)
        if 0 <= first < min(start, end):
            start, action = first, Action(kind, response[first + len(kind) + 2 : end].strip())
    return action if action is not None and action.text else None


def information(passages: Iterable[Passage], characters: int) -> str:
    """What a search shows: the passages in one line each, their texts cut after `characters`."""
    lines = [f"Doc {rank}(Title: {p.title}) {shown_text(p, characters)}" for rank, p in enumerate(passages, start=1)]
    return "<information>" + "\n".join(lines) + "</information>" if lines else NOTHING_FOUND


def shown_text(passage: Passage, characters: int) -> str:
    """The part of a passage's text that an agent sees."""
    return " ".join(passage.text.split())[:characters]
