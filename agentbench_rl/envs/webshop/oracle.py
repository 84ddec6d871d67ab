"""A buyer who knows the goal's product and options: it searches the title, clicks its way there, and buys."""

from __future__ import annotations

from collections.abc import Iterator

from agentbench_rl.envs.webshop import pages
from agentbench_rl.envs.webshop.catalogue import Catalogue, Product
from agentbench_rl.envs.webshop.goals import Goal
from agentbench_rl.envs.webshop.pages import Page


def next_click(page: Page, goal: Goal, catalogue: Catalogue, size: int) -> str | None:
    """The buyer's next action; None when something is bought, or when no search of its own finds the product."""
    product = catalogue.products[goal.asin]
    if page.kind == "done":
        return None
    if page.asin == goal.asin:
        return _on_product(page, goal, product)
    if page.kind == "results" and goal.asin in catalogue.search(page.query):
        place = catalogue.search(page.query).index(goal.asin) // size + 1
        label = goal.asin if place == page.number else pages.NEXT if place > page.number else pages.PREVIOUS
        return f"click[{label.lower()}]"
    query = next((query for query in _queries(product) if goal.asin in catalogue.search(query)), None)
    return None if query is None else f"search[{query}]"


def _queries(product: Product) -> Iterator[str]:
    """Queries that may find a product, the natural one first."""
    yield from (product.title.lower()[: pages.LONGEST_QUERY], product.indexed[: pages.LONGEST_QUERY])


def _on_product(page: Page, goal: Goal, product: Product) -> str:
    if page.kind != "item":
        return f"click[{pages.PREVIOUS.lower()}]"
    chosen = dict(page.options)
    for name, value in wanted_options(goal, product):
        if chosen.get(name) != value:
            return f"click[{value}]"
    return f"click[{pages.BUY.lower()}]"


def wanted_options(goal: Goal, product: Product) -> list[tuple[str, str]]:
    """(name, value) of the product for each wanted option; an option that people wrote is looked up by its value."""
    pairs = [option for option in goal.options if isinstance(option, tuple)]
    for value in (option for option in goal.options if isinstance(option, str)):
        pairs += [(name, value) for name, values in product.options.items() if value in values][:1]
    return pairs
