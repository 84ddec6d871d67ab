"""A small shop for tests: five products whose rewards can be worked out by hand."""

from __future__ import annotations

from typing import Any

from agentbench_rl.envs.webshop.catalogue import Catalogue, make_product
from agentbench_rl.envs.webshop.goals import Goal, synthetic_goals
from agentbench_rl.envs.webshop.suite import WebshopSuite
from agentbench_rl.types import Task

#: Product of the goals of most tests.
MUG = "B00000MUG1"


def record(asin: str = MUG, **changes: Any) -> dict[str, Any]:
    """A line of a products file: a blue or red mug of two sizes, for $12.5."""
    return {
        "asin": asin,
        "name": "Alder Coffee Mug",
        "full_description": "For hot drinks.",
        "small_description": ["Dishwasher safe.", "Made of clay."],
        "pricing": [12.5],
        "Price": "$12.5",
        "product_category": "Home › Kitchen › Mugs",
        "category": "garden",
        "query": "mugs",
        "options": {"color": ["blue", "red"], "size": ["small", "large"]},
        "Attributes": ["double wall", "easy clean"],
        "title_nouns": ["alder", "coffee", "mug"],
        "instruction": "Find me double wall, easy clean mugs",
        "instruction_attributes": ["double wall", "easy clean"],
    } | changes


RECORDS = [
    record(),
    record("B00000MUG2", name="Birch Coffee Mug", pricing=[95.0], Price="$95.0", Attributes=["double wall"]),
    record("B000000CUP", name="Tea Cup", query="cups", product_category="Home › Cups", title_nouns=["tea", "cup"]),
    record("B00000LAMP", name="Lamp", query="lamps", product_category="Light › Lamp", title_nouns=["lamp"], options={}),
    record("B00000BOOK", name="A Book of Mugs", options={"format": ["paper"]}, title_nouns=["book", "mug", "page"]),
]


def small_catalogue() -> Catalogue:
    """The five products."""
    return Catalogue([make_product(entry, "test") for entry in RECORDS])


def small_suite(page_size: int = 10) -> WebshopSuite:
    """All goals of the five products, as one split."""
    catalogue = small_catalogue()
    goals = [goal for product in catalogue.products.values() for goal in synthetic_goals(product)]
    return WebshopSuite(catalogue, {"train": goals}, page_size)


def mug_task(suite: WebshopSuite) -> Task:
    """The task of buying a large red mug."""
    wanted = (("color", "red"), ("size", "large"))
    goals = synthetic_goals(small_catalogue().products[MUG])
    (goal,) = [goal for goal in goals if goal.options == wanted]
    return next(task for task in suite.tasks("train") if task.task_id == goal.task_id)


def direct_purchase(goal: Goal, catalogue: Catalogue) -> float:
    """Reward of buying the goal's own product with all its options."""
    from agentbench_rl.envs.webshop.oracle import wanted_options
    from agentbench_rl.envs.webshop.reward import purchase_reward

    product = catalogue.products[goal.asin]
    return purchase_reward(
        product,
        [value for _, value in wanted_options(goal, product)],
        target=product,
        attributes=goal.attributes,
        options=goal.options,
        price_bound=goal.price_bound,
    )
