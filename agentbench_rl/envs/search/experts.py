"""Experts: a reader of generated pages, which knows only what it was shown, and an oracle for any question."""

from __future__ import annotations

import re
from collections.abc import Collection

from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.search.actions import shown_text
from agentbench_rl.envs.search.problem import Problem
from agentbench_rl.types import AgentRLError

_QUESTION = re.compile(r"(?:Who|What) is the (?P<relations>.+) of (?P<start>.+)\?")
_FACT = re.compile(r"(\w+): ([^;.]+)[;.]")


def reader_action(problem: Problem, seen: Collection[int], characters: int) -> str | None:
    """Follow the relations of the question through the pages seen; search for the first name without a page.

    None when the question is of another form or a page does not say what it should.
    """
    match = _QUESTION.fullmatch(problem.question.question)
    if match is None:
        return None
    pages = {page.title: page for page in (problem.library.passages[number] for number in seen)}
    name = match["start"]
    for relation in reversed(match["relations"].split(" of the ")):
        if name not in pages:
            return search_for(name)
        facts = dict(_FACT.findall(shown_text(pages[name], characters)))
        if relation not in facts:
            return None
        name = facts[relation]
    return f"<answer> {name} </answer>"


def oracle_action(problem: Problem, seen: Collection[int]) -> str:
    """Search for the title of the first gold passage that was not seen; when all were, give the answer."""
    missing = [problem.library.passages[number].title for number in problem.gold if number not in seen]
    return search_for(missing[0]) if missing else f"<answer> {problem.question.answers[0]} </answer>"


def search_for(query: str) -> str:
    """The action that searches for `query`."""
    return f"<search> {query} </search>"


def reader(environment: Environment) -> Demonstrator:
    """The environment's expert, which gives up when a search did not show what it looked for."""

    def act(_observation: str, executed: str | None) -> str | None:
        action = environment.expert_action()
        return action if action != executed else None

    return act


def oracle(problem: Problem) -> Demonstrator:
    """Search for the title of every gold passage, whatever comes of it, then give the answer."""
    titles = dict.fromkeys(problem.library.passages[number].title for number in problem.gold)
    plan = [*map(search_for, titles), f"<answer> {problem.question.answers[0]} </answer>"]
    position = 0

    def act(_observation: str, executed: str | None) -> str | None:
        nonlocal position
        if position < len(plan) and executed == plan[position]:
            position += 1
        return plan[position] if position < len(plan) else None

    return act


def demonstrator(kind: str, environment: Environment, problem: Problem) -> Demonstrator:
    """`scripted`: the reader of generated pages, the oracle for others; `oracle`; AgentRLError for any other kind."""
    if kind not in ("scripted", "oracle"):
        raise AgentRLError(f"search has no expert {kind!r}; there are scripted and oracle.")
    return reader(environment) if kind == "scripted" and problem.generated else oracle(problem)
