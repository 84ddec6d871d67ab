"""WebShop's reward of a purchase (Yao et al. 2022, section 3; `web_agent_site/engine/goal.py`).

    r = r_type · (attribute hits + option hits + [price ≤ bound]) / (wanted attributes + wanted options + 1)

* attribute hit: a fuzzy match with one of the product's attributes, or else literally in its title, features or
  description;
* option hit: a fuzzy match with one of the chosen values. Both are reduced to the first word of `COLOURS` in them; a
  wanted option that has a name is compared as the pair (name, value), which is reduced only when its value, whole, is
  such a word. By itself that leaves 454 of the 6,901 synthetic goals of the small shop without any purchase worth 1
  (the chosen "green2" becomes "green", which the pair is not like); therefore the very value that is wanted is a hit
  here, the one deviation;
* fuzzy match: thefuzz's token_set_ratio above 85;
* r_type: 0.5 where the products share neither query, nor two parts of the category, nor more than a fifth of the
  wanted title's nouns; 0.1 below a tenth of the nouns, 0 without any; else 1. The nouns are those stored with the
  products (by `fetch`, tagged by spaCy's en_core_web_sm); a wanted title without nouns counts as a fifth.

1 is the "success" of the literature.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources

from thefuzz import fuzz

from agentbench_rl.envs.webshop.catalogue import Product

#: WebShop's colour words, in the order in which they are looked for (`web_agent_site/engine/normalize.py`).
COLOURS = tuple(resources.files(__package__).joinpath("colours.txt").read_text(encoding="utf-8").split())
_FUZZY = 85
_CACHED_PAIRS = 1 << 16

#: A wanted option: (name, value), or a value alone in goals that people wrote.
Wanted = tuple[str, str] | str


def purchase_reward(
    bought: Product,
    chosen: Iterable[str],
    *,
    target: Product,
    attributes: tuple[str, ...],
    options: tuple[Wanted, ...],
    price_bound: float,
) -> float:
    """Reward in [0, 1] of buying a product with the chosen option values, for a goal made from `target`."""
    hits = attribute_hits(bought, attributes) + option_hits(tuple(chosen), options) + (bought.price <= price_bound)
    return type_reward(bought, target) * hits / (len(attributes) + len(options) + 1)


def type_reward(bought: Product, target: Product) -> float:
    """Whether the product is of the wanted kind: 1, 0.5, 0.1 or 0."""
    share = len(set(bought.nouns) & set(target.nouns)) / len(target.nouns) if target.nouns else 0.2
    if share == 0:
        return 0.0
    if share < 0.1:
        return 0.1
    return 1.0 if share > 0.2 or bought.query == target.query or len(bought.parts & target.parts) >= 2 else 0.5


def attribute_hits(bought: Product, attributes: tuple[str, ...]) -> int:
    """Number of wanted attributes that the product has."""
    return sum(
        any(similar(own, wanted) for own in bought.attributes) or any(wanted in text for text in bought.texts)
        for wanted in attributes
    )


def option_hits(chosen: tuple[str, ...], options: tuple[Wanted, ...]) -> int:
    """Number of wanted options that one of the chosen values meets."""
    return sum(any(_meets(value, wanted) for value in chosen) for wanted in options)


@lru_cache(_CACHED_PAIRS)
def _meets(value: str, wanted: Wanted) -> bool:
    exact = wanted if isinstance(wanted, str) else wanted[1]
    return value == exact or similar(str(_first_colour(value)), str(_first_colour(wanted)))


@lru_cache(_CACHED_PAIRS)
def similar(one: str, other: str) -> bool:
    """WebShop's fuzzy match."""
    return bool(fuzz.token_set_ratio(one, other) > _FUZZY)


def _first_colour(option: Wanted) -> Wanted:
    """The first colour word that is in a value (in a pair: that is its name or value), or else the option itself."""
    return next((colour for colour in COLOURS if colour in option), option)
