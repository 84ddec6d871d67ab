"""Goals: what a product is to be bought, under fixed ids, and the split that an id belongs to.

Synthetic goals are one product with an instruction times every combination of its options; goals that people wrote
stand with the product. The id of a goal tells its product and hashes what else is wanted, so that it is the same
whatever else the shop sells. The split is decided by a hash of the id: WebShop's own split goes by the position in a
shuffled list, so that another set of goals or another seed lets training goals into the test split.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from agentbench_rl.envs.webshop.catalogue import Catalogue, Product
from agentbench_rl.envs.webshop.reward import Wanted
from agentbench_rl.types import AgentRLError

#: Shares of the ids, in hundredths.
_SHARES = {"train": 80, "validation": 10, "test": 10}
_UNBOUNDED = 1_000_000.0
_PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal; `options` are (name, value) pairs, or values alone where people wrote it."""

    task_id: str
    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[Wanted, ...]
    price_bound: float

    @property
    def split(self) -> str:
        """Name of the split that the id belongs to."""
        place = int(hashlib.sha256(self.task_id.encode()).hexdigest()[:8], 16) % 100
        for split, share in _SHARES.items():
            if place < share:
                return split
            place -= share
        raise AssertionError("the shares make up the whole")

    def content_hash(self, catalogue: Catalogue) -> str:
        """SHA-256 of the goal and of all products of the shop."""
        return hashlib.sha256(f"{catalogue.digest}\n{self.as_json()}".encode()).hexdigest()

    def as_json(self) -> str:
        """The goal on one line."""
        return json.dumps(asdict(self), ensure_ascii=False)


def synthetic_goals(product: Product) -> Iterator[Goal]:
    """A goal for each distinct combination of the product's options, or none for a product without instruction."""
    instruction = product.record.get("instruction")
    if instruction is None:
        return
    attributes = _texts(product, product.record, "instruction_attributes")
    names = sorted(product.options)
    for values in dict.fromkeys(itertools.product(*(product.options[name] for name in names))):
        options = tuple(zip(names, values, strict=True))
        clause = ", and ".join(f"{name}: {value}" for name, value in options)
        text = f"{instruction} with {clause}" if clause else instruction
        yield _goal(product, text, attributes, options)


def human_goals(product: Product) -> Iterator[Goal]:
    """The goals that people wrote for the product; those without attributes are left out, as in WebShop."""
    for record in product.record.get("human_instructions", ()):
        attributes = _texts(product, record, "instruction_attributes")
        if attributes:
            options = _texts(product, record, "instruction_options")
            yield _goal(product, record["instruction"].strip("."), attributes, options)


def parse_goal(line: str, origin: str) -> Goal:
    """A goal written by `as_json`; raises AgentRLError for anything else."""
    try:
        record = json.loads(line)
        options = tuple(tuple(option) if isinstance(option, list) else option for option in record["options"])
        return Goal(**record | {"attributes": tuple(record["attributes"]), "options": options})
    except (ValueError, KeyError, TypeError) as error:
        raise AgentRLError(f"{origin}: not a goal ({error}); delete the panel and draw it again.") from error


def _goal(product: Product, text: str, attributes: tuple[str, ...], options: tuple[Wanted, ...]) -> Goal:
    content = json.dumps([text, options], ensure_ascii=False)
    task_id = f"{product.asin}.{hashlib.sha256(content.encode()).hexdigest()[:10]}"
    bound = _price_bound(product.price, task_id)
    if bound is not None:
        text += f", and price lower than {bound:.2f} dollars"
    return Goal(task_id, product.asin, text, attributes, options, _UNBOUNDED if bound is None else bound)


def _price_bound(price: float, task_id: str) -> float | None:
    """The larger of two of the next four multiples of ten dollars, drawn by the id; None for a very dear product."""
    above = [step for step in _PRICE_STEPS if step > price][:4]
    return max(random.Random(f"bound/{task_id}").sample(above, 2)) if len(above) > 1 else None


def _texts(product: Product, record: dict[str, Any], key: str) -> tuple[str, ...]:
    values = record.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise AgentRLError(f"product {product.asin}: the key {key!r} of its instruction is no list of texts.")
    return tuple(values)
