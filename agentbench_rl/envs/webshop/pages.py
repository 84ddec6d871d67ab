"""The pages of the shop: their texts, joined by [SEP] as in WebShop's text environment, and their buttons.

A page is a value; `follow` gives the page that a button leads to, `search` the results of a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from agentbench_rl.envs.webshop.catalogue import Catalogue, Product
from agentbench_rl.envs.webshop.goals import Goal

BACK = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY = "Buy Now"
SEPARATOR = " [SEP] "
#: Of a longer query the rest is ignored; the longest instruction of the official goals has a third of it.
LONGEST_QUERY = 1000

Kind = Literal["search", "results", "item", "description", "features", "reviews", "done"]
SUB_PAGES: dict[str, Kind] = {"Description": "description", "Features": "features", "Reviews": "reviews"}


@dataclass(frozen=True, slots=True)
class Page:
    """Where the agent is: the query and number of the results it came from, the product, the options it chose."""

    kind: Kind = "search"
    query: str = ""
    number: int = 1
    asin: str = ""
    #: (name, value), sorted by name.
    options: tuple[tuple[str, str], ...] = ()


START = Page()


def search(query: str) -> Page:
    """The first page of results."""
    return Page("results", query[:LONGEST_QUERY])


def results(page: Page, catalogue: Catalogue, size: int) -> tuple[str, ...]:
    """Asins that a page of results shows."""
    return catalogue.search(page.query)[(page.number - 1) * size : page.number * size]


def text(page: Page, goal: Goal, catalogue: Catalogue, size: int) -> str:
    """What the agent sees, `size` products to a page of results. As in WebShop, chosen options are not marked."""
    if page.kind == "search":
        return SEPARATOR.join(["WebShop", "Instruction:", goal.instruction, "Search"])
    if page.kind == "done":
        return "Thank you for shopping with us!"
    return SEPARATOR.join(["Instruction:", goal.instruction, BACK, *_body(page, catalogue, size)])


def buttons(page: Page, catalogue: Catalogue, size: int) -> dict[str, Page]:
    """Labels in lower case, as a click names them, and the pages behind them; buying leads to `done`."""
    if page.kind in ("search", "done"):
        return {}
    found = {BACK.lower(): START}
    if page.kind == "results":
        if page.number > 1:
            found[PREVIOUS.lower()] = replace(page, number=page.number - 1)
        if page.number * size < len(catalogue.search(page.query)):
            found[NEXT.lower()] = replace(page, number=page.number + 1)
        return found | {asin.lower(): replace(page, kind="item", asin=asin) for asin in results(page, catalogue, size)}
    if page.kind != "item":
        return found | {PREVIOUS.lower(): replace(page, kind="item")}
    found[PREVIOUS.lower()] = Page("results", page.query, page.number)
    found |= {label.lower(): replace(page, kind=kind) for label, kind in SUB_PAGES.items()}
    found[BUY.lower()] = replace(page, kind="done")
    for name, values in catalogue.products[page.asin].options.items():
        others = [option for option in page.options if option[0] != name]
        found |= {value: replace(page, options=tuple(sorted([*others, (name, value)]))) for value in values}
    return found


def _body(page: Page, catalogue: Catalogue, size: int) -> Iterator[str]:
    if page.kind == "results":
        total = len(catalogue.search(page.query))
        yield f"Page {page.number} (Total results: {total})"
        if page.number > 1:
            yield PREVIOUS
        if page.number * size < total:
            yield NEXT
        for asin in results(page, catalogue, size):
            product = catalogue.products[asin]
            yield from (asin, product.title, product.price_tag)
        return
    yield PREVIOUS
    product = catalogue.products[page.asin]
    if page.kind == "item":
        yield from _item(product)
    elif page.kind == "description":
        yield product.description
    elif page.kind == "features":
        yield from product.features
    else:
        yield "No reviews found"


def _item(product: Product) -> Iterator[str]:
    for name, values in product.options.items():
        yield name
        yield from values
    yield from (product.title, f"Price: {product.price_tag}", "Rating: N.A.", *SUB_PAGES, BUY)
