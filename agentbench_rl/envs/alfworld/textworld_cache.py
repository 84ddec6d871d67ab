"""Faster TextWorld for conformance checks: it parses the same grammars and problems again at every step.

Within `memoised()`, parsed grammars, queries and translated problems are kept, and derivation contexts are copied
shallowly. Texts, commands and outcomes stay the same; TextWorld's planner (`policy_commands`) must not be used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any


@contextmanager
def memoised() -> Iterator[None]:
    """Memoise TextWorld's slow functions inside the `with` block; needs the extra `alfworld`."""
    import fast_downward
    from textworld.envs.pddl import logic, textgen
    from textworld.logic import Rule

    replacements = [
        (fast_downward, "pddl2sas", _translate_once(fast_downward.pddl2sas)),
        (logic, "_parse_and_convert", lru_cache(maxsize=8)(logic._parse_and_convert)),
        (textgen, "_parse_and_convert", _fresh_copies(textgen._parse_and_convert)),
        (textgen, "copy_context", _copy_context),
        (textgen.Symbol, "copy", _copy_symbol),
        (Rule, "parse_conjunctive_query", staticmethod(lru_cache(maxsize=None)(Rule.parse_conjunctive_query))),
    ]
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements]
    try:
        for owner, name, replacement in replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _translate_once(translate: Callable[..., Any]) -> Callable[..., Any]:
    """Translate a problem once, not in load and reset, each for play and for planning."""
    once = lru_cache(maxsize=4)(lambda domain, problem: translate(domain, problem))
    return lambda domain, problem, verbose=False, optimize=False: once(domain, problem)


def _fresh_copies(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Parse once and hand out copies, for TextWorld writes into the symbols."""
    once = lru_cache(maxsize=None)(parse)
    return wraps(parse)(lambda text, rule_name=None, **_: copy.deepcopy(once(text, rule_name=rule_name)))


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _copy_symbol(symbol: Any, context: dict[str, Any]) -> Any:
    clone = copy.copy(symbol)
    clone.context = _copy_context(context)
    return clone
