r"""What members may write, parsed strictly: a response outside the grammar is None and is never repaired.

solver, reviser: a text with `\boxed{…}`. aggregator: exactly one `FINAL:`, and after it `\boxed{…}`. verifier: exactly
one `<verify>WORD</verify>`. router: exactly one `<route>1,3</route>`, of different known numbers, or
`<route>STOP</route>`. searcher, answerer: exactly one `<think>…</think>`, and after it exactly one `<search>…</search>`
or `<answer>…</answer>`. A response that was cut off is malformed. Source: SRPO (arXiv 2609.08452, appendix).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from agentbench_rl.envs.math.grammar import parse_boxed

#: What a router says to end the rounds.
STOP = "STOP"
_FINAL = "FINAL:"
_NUMBERS = re.compile(r"[1-9][0-9]*(,[1-9][0-9]*)*", re.ASCII)


def only(text: str, tag: str) -> str | None:
    """What stands in the only `<tag>…</tag>` of a text; None where there is not exactly one opening and closing."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    inside, end, _ = text.partition(opening)[2].partition(closing)
    return inside if end else None


def solution(text: str, finished: bool) -> str | None:
    r"""The whole text of a solver, where it holds a `\boxed{…}`."""
    return text if finished and parse_boxed(text) is not None else None


def final_answer(text: str, finished: bool) -> str | None:
    """The boxed answer of an aggregator."""
    return parse_boxed(text.partition(_FINAL)[2]) if finished and text.count(_FINAL) == 1 else None


def verdict(text: str, finished: bool, words: Collection[str]) -> str | None:
    """The word of a verifier, one of `words`."""
    word = only(text, "verify")
    return word if finished and word in words else None


def route(text: str, finished: bool, agents: int) -> str | None:
    """The numbers that a router chose of 1 to `agents`, as they were written, or STOP."""
    chosen = only(text, "route")
    if chosen is None or not finished:
        return None
    return chosen if chosen == STOP or _are_known(chosen, agents) else None


def chosen_agents(action: str) -> tuple[int, ...]:
    """The agents of a well-formed route, in ascending order; none for STOP."""
    return () if action == STOP else tuple(sorted(map(int, action.split(","))))


def thought_and(text: str, finished: bool, tag: str) -> str | None:
    """The content of the only `<tag>…</tag>`, where the only `<think>…</think>` stands before it."""
    thought, content = only(text, "think"), only(text, tag)
    if not finished or thought is None or content is None or text.index(f"<{tag}>") < text.index("</think>"):
        return None
    return content.strip() or None


def _are_known(chosen: str, agents: int) -> bool:
    if _NUMBERS.fullmatch(chosen) is None or len(chosen) > len(str(agents)) * 2 * agents:
        return False
    numbers = chosen_agents(chosen)
    return len(set(numbers)) == len(numbers) and numbers[-1] <= agents
