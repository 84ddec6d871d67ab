"""Seeded catalogues of the official schema: products of known kinds, with their near misses beside them.

A kind has a query, attributes and options. Of each kind there are several products, so that every search finds
distractors: products that lack an attribute, are offered in other colours or sizes, or cost too much. Goals come from
the catalogue as they do from the official one: an instruction per product times the combinations of its options.
"""

from __future__ import annotations

import json
import random
from functools import cache
from importlib import resources
from typing import Any

from agentbench_rl.config.environment import ShopGeneratorConfig
from agentbench_rl.envs.webshop.catalogue import Catalogue, make_product


@cache
def tables() -> dict[str, Any]:
    """Brands, values of options, and the kinds of product; the words of a kind's query are the nouns of its titles."""
    text = resources.files(__package__).joinpath("shop.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@cache
def _codes() -> list[str]:
    """Asins: two syllables in lower case, which a small policy copies more easily than Amazon's ten characters."""
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    return [one + other for one in syllables for other in syllables]


def generate_catalogue(settings: ShopGeneratorConfig) -> Catalogue:
    """The catalogue of these settings; equal settings give equal products."""
    rng = random.Random(f"webshop/{settings.seed}")
    codes = rng.sample(_codes(), settings.products)
    kinds = tables()["kinds"][: settings.kinds]
    records = [_record(code, kinds[index % len(kinds)], settings, rng) for index, code in enumerate(codes)]
    rng.shuffle(records)
    return Catalogue([make_product(record, "generated catalogue") for record in records])


def _record(asin: str, kind: dict[str, Any], settings: ShopGeneratorConfig, rng: random.Random) -> dict[str, Any]:
    brand = rng.choice(tables()["brands"])
    attributes = rng.sample(kind["attributes"], rng.randint(*settings.attributes))
    wanted = attributes[: rng.randint(1, len(attributes))]
    names = kind["options"][: settings.options]
    options = {name: _offered(tables()["values"][name], settings.option_values, rng) for name in names}
    price = rng.randint(4, 89) + rng.choice((0.49, 0.95, 0.99))
    return {
        "asin": asin,
        "name": f"{brand} {' '.join(attributes)} {kind['query']}".title(),
        "full_description": f"A {kind['query']} by {brand}, made to last and checked before it is sent.",
        "small_description": [f"{attribute.capitalize()}." for attribute in attributes],
        "pricing": [price],
        "Price": f"${price}",
        "product_category": kind["path"],
        "category": kind["category"],
        "query": kind["query"],
        "options": options,
        "Attributes": attributes,
        "title_nouns": sorted({brand.lower(), *kind["query"].split()}),
        "instruction": f"Find me {', '.join(wanted)} {kind['query']}",
        "instruction_attributes": wanted,
    }


def _offered(values: list[str], counts: tuple[int, int], rng: random.Random) -> list[str]:
    chosen = set(rng.sample(values, min(len(values), rng.randint(*counts))))
    return [value for value in values if value in chosen]
