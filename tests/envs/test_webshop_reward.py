"""The reward of a purchase: by hand, against an independently written formula, and 1 for what was asked for."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rapidfuzz import fuzz
from rapidfuzz.utils import default_process
from small_shop import MUG, direct_purchase, record, small_catalogue

from agentbench_rl.config.environment import ShopGeneratorConfig
from agentbench_rl.envs.webshop.catalogue import Catalogue, Product, load_catalogue, make_product
from agentbench_rl.envs.webshop.generator import generate_catalogue
from agentbench_rl.envs.webshop.goals import Goal, human_goals, synthetic_goals
from agentbench_rl.envs.webshop.reward import COLOURS, option_hits, purchase_reward, similar, type_reward


def buy(asin: str, *chosen: str, **goal: Any) -> float:
    """Reward in the small shop, where a large red double-wall easy-clean mug below $20 is wanted."""
    products = small_catalogue().products
    wanted = {
        "attributes": ("double wall", "easy clean"),
        "options": (("color", "red"), ("size", "large")),
        "price_bound": 20.0,
    } | goal
    return purchase_reward(products[asin], chosen, target=products[MUG], **wanted)


def test_partial_credit_by_hand() -> None:
    assert buy(MUG, "red", "large") == 1.0
    assert buy(MUG, "red") == pytest.approx(4 / 5)
    assert buy(MUG) == pytest.approx(3 / 5)
    assert buy(MUG, "blue", "small") == pytest.approx(3 / 5)
    assert buy(MUG, "red", "large", price_bound=10.0) == pytest.approx(4 / 5)
    assert buy(MUG, "red", "large", attributes=("double wall", "vegan")) == pytest.approx(4 / 5)
    # The description and the features count as attributes where they hold the words.
    assert buy(MUG, "red", "large", attributes=("double wall", "dishwasher safe")) == 1.0


def test_another_product_pays_by_its_own_attributes_price_and_kind() -> None:
    assert buy("B00000MUG2", "red", "large") == pytest.approx(3 / 5)  # too dear, and not easy to clean
    assert buy("B000000CUP", "red", "large") == 0.0  # no noun of the title is shared
    assert buy("B00000LAMP") == 0.0


@pytest.mark.parametrize(
    ("nouns", "query", "category", "expected"),
    [
        (["n0", "n1", "n2"], "x", "x", 1.0),  # more than a fifth of the nouns
        (["n0", "n1"], "x", "x", 0.5),
        (["n0", "n1"], "mugs", "x", 1.0),
        (["n0", "n1"], "x", "Home › Kitchen › Cups", 1.0),
        (["n0", "n1"], "x", "Home › Cups", 0.5),
        (["n0"], "x", "x", 0.5),  # exactly a tenth is not below it
        ([], "mugs", "Home › Kitchen › Mugs", 0.0),
    ],
)
def test_kind_of_product(nouns: list[str], query: str, category: str, expected: float) -> None:
    target = make_product(record(title_nouns=[f"n{number}" for number in range(10)]), "test")
    bought = make_product(record(title_nouns=nouns, query=query, product_category=category), "test")
    assert type_reward(bought, target) == expected


def test_below_a_tenth_of_the_nouns_the_kind_hardly_counts() -> None:
    target = make_product(record(title_nouns=[f"n{number}" for number in range(11)]), "test")
    assert type_reward(make_product(record(title_nouns=["n0"]), "test"), target) == 0.1
    assert type_reward(make_product(record(), "test"), make_product(record(title_nouns=[]), "test")) == 1.0


def test_options_are_compared_by_colour_and_fuzzily() -> None:
    assert option_hits(("light blue",), ("navy blue",)) == 1  # both are "blue"
    assert option_hits(("blue",), ("dark bluish",)) == 0
    assert option_hits(("blue",), ("sky blue",)) == 1
    assert option_hits(("pack of 2",), (("pack", "pack of 2"),)) == 1
    assert option_hits(("pack of 2",), (("pack", "pack of 4"),)) == 1  # as fuzzy as the original
    assert option_hits(("small",), (("size", "large"),)) == 0


@cache
def near(one: str, other: str) -> bool:
    ascii_only = [text.translate(dict.fromkeys(range(128, 256))) for text in (one, other)]
    return round(fuzz.token_set_ratio(*ascii_only, processor=default_process)) > 85


def formula(bought: Product, goal: Goal, target: Product, chosen: list[str]) -> float:
    """The published reward, written anew: plain loops, rapidfuzz instead of thefuzz."""

    def reduce(option: Any) -> Any:
        for colour in COLOURS:
            if colour in option:
                return colour
        return option

    shared = len(set(bought.nouns) & set(target.nouns))
    title = shared / len(target.nouns) if target.nouns else 0.2
    if title == 0:
        kind = 0.0
    elif title < 0.1:
        kind = 0.1
    elif bought.query == target.query or title > 0.2:
        kind = 1.0
    else:
        kind = 1.0 if len(bought.parts.intersection(target.parts)) > 1 else 0.5
    points = 1 if bought.price <= goal.price_bound else 0
    haystack = [bought.title.lower(), " ".join(bought.features).lower(), bought.description.lower()]
    for attribute in goal.attributes:
        if [own for own in bought.attributes if near(own, attribute)] or [t for t in haystack if attribute in t]:
            points += 1
    for option in goal.options:
        exact = option if isinstance(option, str) else option[1]
        if exact in chosen or [value for value in chosen if near(reduce(value), str(reduce(option)))]:
            points += 1
    return kind * points / (1 + len(goal.attributes) + len(goal.options))


def assert_equal_rewards(catalogue: Catalogue, goals: list[Goal], count: int) -> None:
    rng = random.Random(5)
    products = list(catalogue.products.values())
    seen = set()
    for _ in range(count):
        goal = rng.choice(goals)
        target = catalogue.products[goal.asin]
        alike = [product for product in products if product.query == target.query]
        bought = rng.choice([target, rng.choice(alike), rng.choice(products)])
        chosen = [rng.choice(values) for values in bought.options.values() if rng.random() < 0.7]
        reward = purchase_reward(
            bought,
            chosen,
            target=target,
            attributes=goal.attributes,
            options=goal.options,
            price_bound=goal.price_bound,
        )
        assert reward == pytest.approx(formula(bought, goal, target, chosen), abs=1e-12)
        seen.add(round(reward, 3))
    assert len(seen) > 10


def test_generated_shop_pays_as_the_formula_says() -> None:
    catalogue = generate_catalogue(ShopGeneratorConfig(products=120))
    goals = [goal for product in catalogue.products.values() for goal in synthetic_goals(product)]
    assert_equal_rewards(catalogue, goals, 600)


def test_official_shop_pays_as_the_formula_says(data_dir: Path) -> None:
    catalogue = load_catalogue(data_dir / "webshop")
    products = catalogue.products.values()
    goals = [goal for product in products for make in (synthetic_goals, human_goals) for goal in make(product)]
    assert_equal_rewards(catalogue, goals, 2500)


def test_what_was_asked_for_pays_one() -> None:
    catalogue = generate_catalogue(ShopGeneratorConfig(products=200, seed=3))
    for product in catalogue.products.values():
        for goal in synthetic_goals(product):
            assert direct_purchase(goal, catalogue) == 1.0


def test_what_was_asked_for_pays_one_in_the_official_shop(data_dir: Path) -> None:
    catalogue = load_catalogue(data_dir / "webshop")
    for product in catalogue.products.values():
        for goal in [*synthetic_goals(product), *human_goals(product)]:
            assert direct_purchase(goal, catalogue) == 1.0, goal


def test_the_wanted_value_itself_always_counts() -> None:
    """The original loses it where the value holds a colour word that is no word of its own."""
    assert not similar("green", str(("color", "green2")))
    assert option_hits(("green2",), (("color", "green2"),)) == 1
