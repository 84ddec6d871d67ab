"""Products: what a shop sells, on disk one JSON object per line of `products*.jsonl.gz`.

Keys of a line: asin, name, full_description, small_description (the features: a list or one text), pricing (prices in
dollars: one, a range of two, or none), Price (as shown), product_category ("Home › Furniture › Tables"), category,
query (the kind of product), options (name → values), Attributes, title_nouns (the nouns and proper nouns of the title,
lower case); where goals are made of it also instruction and instruction_attributes, and
human_instructions. Other keys are ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agentbench_rl.envs.webshop.bm25 import SearchIndex
from agentbench_rl.types import AgentRLError

RESULTS = 50
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "asin": str,
    "name": str,
    "full_description": str,
    "small_description": (list, str),
    "pricing": list,
    "Price": str,
    "product_category": str,
    "category": str,
    "query": str,
    "options": dict,
    "Attributes": list,
    "title_nouns": list,
}
_KEPT = (*_REQUIRED, "instruction", "instruction_attributes", "human_instructions")
_UNPRICED = 100.0
_CACHED_QUERIES = 4096


@dataclass(frozen=True, eq=False)
class Product:
    """A product; `features` are its bullet points, `parts` those of its category, `record` the line it came from."""

    asin: str
    title: str
    description: str
    features: tuple[str, ...]
    price: float
    price_tag: str
    parts: frozenset[str]
    category: str
    query: str
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    nouns: tuple[str, ...]
    record: dict[str, Any]

    @cached_property
    def texts(self) -> tuple[str, str, str]:
        """Title, features and description in lower case, where the reward looks for attributes."""
        return self.title.lower(), " ".join(self.features).lower(), self.description.lower()

    @property
    def indexed(self) -> str:
        """What search sees: title, description, first feature and options, as in WebShop's index."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.features[:1], options]).lower()


class Catalogue:
    """Products by asin, in the order of the file, with their search index."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = {product.asin: product for product in products}
        self._asins = tuple(self.products)
        self.search: Callable[[str], tuple[str, ...]] = lru_cache(_CACHED_QUERIES)(self._search)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all products."""
        return hashlib.sha256("".join(map(_line, self.products.values())).encode()).hexdigest()

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex([product.indexed for product in self.products.values()])

    def _search(self, query: str) -> tuple[str, ...]:
        """Asins of the up to 50 best products, best first."""
        return tuple(self._asins[position] for position in self._index.best(query, RESULTS))


def load_catalogue(path: Path) -> Catalogue:
    """Read `path`, or the one file `products*.jsonl.gz` in it; raises AgentRLError naming a damaged file or line."""
    file = _file(path)
    products = [parse_product(line, f"{file}, line {number}") for number, line in enumerate(_lines(file), start=1)]
    if not products:
        raise AgentRLError(f"{file}: holds no products; fetch it again.")
    catalogue = Catalogue(products)
    if len(catalogue.products) != len(products):
        raise AgentRLError(f"{file}: {len(products) - len(catalogue.products)} lines repeat an asin; fetch it again.")
    return catalogue


def write_catalogue(catalogue: Catalogue, file: Path) -> None:
    """Write the products; equal catalogues give equal bytes."""
    text = "".join(map(_line, catalogue.products.values()))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def parse_product(line: str, origin: str) -> Product:
    """A product of a line; raises AgentRLError when it is not what the module describes."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise AgentRLError(f"{origin}: invalid JSON ({error}); fetch the file again.") from error
    if not isinstance(record, dict):
        raise AgentRLError(f"{origin}: a JSON object is expected, not {type(record).__name__}.")
    return make_product(record, origin)


def make_product(record: dict[str, Any], origin: str) -> Product:
    """A product of a record; raises AgentRLError for a missing key or a value of another type."""
    _check(record, origin)
    features = record["small_description"]
    return Product(
        asin=record["asin"],
        title=record["name"],
        description=record["full_description"],
        features=tuple([features] if isinstance(features, str) else features),
        price=_price(record),
        price_tag=record["Price"],
        parts=frozenset(part.strip() for part in record["product_category"].split("›")),
        category=record["category"],
        query=record["query"].lower().strip(),
        options={name.lower(): tuple(values) for name, values in record["options"].items()},
        attributes=tuple(record["Attributes"]),
        nouns=tuple(record["title_nouns"]),
        record={key: record[key] for key in _KEPT if key in record},
    )


def _price(record: dict[str, Any]) -> float:
    """Of a range, a price drawn by the asin alone (WebShop draws it anew whenever it starts)."""
    prices = record["pricing"]
    if not prices:
        return _UNPRICED
    if len(prices) == 1:
        return float(prices[0])
    return random.Random(f"price/{record['asin']}").uniform(*prices[:2])


def _check(record: dict[str, Any], origin: str) -> None:
    for key, kind in _REQUIRED.items():
        if key not in record:
            hint = " (`agentrl env fetch webshop` writes it)" if key == "title_nouns" else ""
            raise AgentRLError(f"{origin}: the key {key!r} is missing{hint}; fetch the file again.")
        if not isinstance(record[key], kind):
            raise AgentRLError(f"{origin}: the key {key!r} holds a {type(record[key]).__name__}; fetch the file again.")
    lists = {key: record[key] for key, kind in _REQUIRED.items() if isinstance(record[key], list) and key != "pricing"}
    lists |= {f"options.{name}": values for name, values in record["options"].items()}
    for key, values in lists.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise AgentRLError(f"{origin}: the key {key!r} holds something else than a list of texts.")
    if not all(isinstance(price, int | float) for price in record["pricing"]):
        raise AgentRLError(f"{origin}: the key 'pricing' holds something that is no number.")


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("products*.jsonl.gz"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise AgentRLError(
            f"{path}: one file products*.jsonl.gz is expected here, found: {found}; "
            "fetch the data with `agentrl env fetch webshop DIR` or name the file itself."
        )
    return files[0]


def _lines(file: Path) -> Iterable[str]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise AgentRLError(f"{file}: truncated or damaged gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise AgentRLError(f"{file}: cannot be read: {error}; check the path.") from error


def _line(product: Product) -> str:
    return json.dumps(product.record, ensure_ascii=False) + "\n"
