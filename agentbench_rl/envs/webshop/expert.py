"""A shopper who sees what an agent sees: it searches what the instruction asks for, compares, chooses and buys."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentbench_rl.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEPARATOR

_BOUND = re.compile(r", and price lower than ([\d.]+) dollars$")
_PRICE = re.compile(r"\$([\d.]+)")
_WORD = re.compile(r"[a-z0-9]+")
_IDLE = {"find", "me", "with", "for", "and", "the", "a"}
#: Products that are looked at before the best of them is bought.
_MOST_VISITS = 8
#: What a place further down the list costs, in shares of the wished words.
_PLACE = 0.05


@dataclass(frozen=True)
class Wish:
    """What an instruction asks for: attributes and kind of product as text and as words, option values, a price."""

    kind: str
    words: frozenset[str]
    options: tuple[str, ...]
    most: float


@dataclass
class Shopper:
    """Proposes actions from observations alone; one per episode.

    It opens the listed products in the order of the wished words in their titles and of their places, and buys the
    first that offers all wished options, or else the one that offers most.
    """

    _offers: dict[str, float] = field(default_factory=dict)
    _at: str = ""
    _chosen: set[str] = field(default_factory=set)

    def act(self, observation: str, executed: str | None) -> str | None:
        """The next action, given what is seen and the action that led to it; None: there is nothing to buy."""
        parts = observation.split(SEPARATOR)
        wish = parse_wish(parts[parts.index("Instruction:") + 1])
        if BUY in parts:
            return self._on_product(parts, wish, executed)
        if BACK not in parts:
            return f"search[{' '.join([wish.kind, *wish.options])}]"
        if parts[3].startswith("Page "):
            return self._on_results(parts, wish)
        return f"click[{PREVIOUS.lower()}]"

    def _on_results(self, parts: list[str], wish: Wish) -> str | None:
        self._chosen.clear()
        promises = _promises(parts, wish)
        fresh = [asin for asin in promises if asin not in self._offers]
        if fresh and len(self._offers) < _MOST_VISITS:
            self._at = max(fresh, key=promises.__getitem__)
        elif any(asin in self._offers for asin in promises):
            self._at = max((asin for asin in promises if asin in self._offers), key=self._offers.__getitem__)
        else:
            return None
        return f"click[{self._at.lower()}]"

    def _on_product(self, parts: list[str], wish: Wish, executed: str | None) -> str:
        there = [value for value in wish.options if value in parts]
        self._chosen |= {value for value in there if executed == f"click[{value}]"}
        visited = self._at in self._offers
        self._offers[self._at] = len(there) / len(wish.options) if wish.options else 1.0
        if not visited and self._offers[self._at] < 1.0:
            return f"click[{PREVIOUS.lower()}]"
        missing = [value for value in there if value not in self._chosen]
        return f"click[{missing[0]}]" if missing else f"click[{BUY.lower()}]"


def parse_wish(instruction: str) -> Wish:
    """Read an instruction of a synthetic goal; one that people wrote has its options among the words."""
    bound = _BOUND.search(instruction)
    text = _BOUND.sub("", instruction)
    kind, values = text, tuple[str, ...]()
    colon = text.find(": ")
    start = text.rfind(" with ", 0, colon) if colon >= 0 else -1
    if start >= 0:
        kind = text[:start]
        clauses = text[start + len(" with ") :].split(", and ")
        values = tuple(clause.partition(": ")[2] for clause in clauses)
    words = _words(kind) - _IDLE
    kind = kind.removeprefix("Find me ").lower()
    return Wish(kind, frozenset(words), values, float(bound.group(1)) if bound else float("inf"))


def _promises(parts: list[str], wish: Wish) -> dict[str, float]:
    """Listed product → share of the wished words in its title less its place's malus, or −1 where it is too dear."""
    first = 3 + 1 + (PREVIOUS in parts) + (NEXT in parts)
    promises: dict[str, float] = {}
    for asin, title, price in zip(parts[first::3], parts[first + 1 :: 3], parts[first + 2 :: 3], strict=False):
        lowest = float(match.group(1)) if (match := _PRICE.search(price)) else 0.0
        share = len(wish.words & _words(title)) / max(1, len(wish.words))
        promises[asin] = share - _PLACE * len(promises) if lowest <= wish.most else -1.0
    return promises


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
