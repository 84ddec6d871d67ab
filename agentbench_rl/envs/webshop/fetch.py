"""Download of WebShop's official products and their conversion to `products_<set>.jsonl.gz`.

The files are those that WebShop's `setup.sh` names: `small` is its shop of 1,000 products, `all` the whole one (over a
million products: gigabytes of memory, hours of tagging). What the shop shows follows `load_products` of
`web_agent_site/engine/engine.py`. The nouns of the titles are tagged here once by spaCy's en_core_web_sm, so that
playing needs no spaCy.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from agentbench_rl.envs.download import download
from agentbench_rl.envs.webshop.catalogue import make_product
from agentbench_rl.envs.webshop.goals import human_goals
from agentbench_rl.types import AgentRLError

_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="


@dataclass(frozen=True, slots=True)
class Source:
    """Addresses of a shop's products, their attributes and people's instructions; known numbers, where published."""

    items: str
    attributes: str
    human: str
    products: int | None = None
    combinations: int | None = None


_HUMAN = f"{_DRIVE}14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O"
SOURCES: Mapping[str, Source] = {
    "small": Source(
        f"{_DRIVE}1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib",
        f"{_DRIVE}1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu",
        _HUMAN,
        products=1000,
        combinations=6910,
    ),
    "all": Source(f"{_DRIVE}1A2whVgOO0euk5O13n2iYDM0bQRkkRduB", f"{_DRIVE}1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi", _HUMAN),
}
#: Titles → the nouns and proper nouns of each, lower case, in order.
Tagger = Callable[[Iterable[str]], Iterator[list[str]]]
_NOUNS = ("NOUN", "PROPN")
_LONGEST_ASIN = 10


def fetch(
    destination: Path,
    dataset: str = "small",
    sources: Mapping[str, Source] = SOURCES,
    load_tagger: Callable[[], Tagger] | None = None,
) -> dict[str, int]:
    """Write `products_<dataset>.jsonl.gz` and return the numbers of products and of goals of both kinds.

    Interrupted downloads are resumed; they stay in `destination/raw`. Raises AgentRLError for an unknown set, without
    spaCy's model, when the network fails, or when the files are not what they should be.
    """
    if dataset not in sources:
        raise AgentRLError(f"WebShop has no set {dataset!r}; there are: {', '.join(sources)}.")
    tag = (load_tagger or spacy_tagger)()
    source, raw = sources[dataset], destination / "raw"
    items = _fetched(source.items, raw / f"items_{dataset}.json", list)
    attributes = _fetched(source.attributes, raw / f"attributes_{dataset}.json", dict)
    human = _fetched(source.human, raw / "human_instructions.json", dict)
    try:
        records = list(_records(items, attributes, human))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise AgentRLError(f"{raw}: a product is not as WebShop's are ({type(error).__name__}: {error}).") from error
    for record, nouns in zip(records, tag(record["name"] for record in records), strict=True):
        record["title_nouns"] = nouns
    counts = _counts(records)
    for key, expected in (("products", source.products), ("combinations", source.combinations)):
        if expected is not None and counts[key] != expected:
            raise AgentRLError(f"{raw}: {counts[key]} {key} instead of {expected}; delete it and fetch again.")
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    partial = destination / f"products_{dataset}.part"
    partial.write_bytes(gzip.compress(text.encode(), mtime=0))
    partial.rename(destination / f"products_{dataset}.jsonl.gz")
    return counts


def spacy_tagger() -> Tagger:
    """spaCy's en_core_web_sm, as WebShop uses it; raises AgentRLError where it is not installed."""
    try:
        import spacy

        model = spacy.load("en_core_web_sm", disable=["parser", "ner", "lemmatizer"])
    except (ImportError, OSError) as error:
        raise AgentRLError(
            f"the nouns of product titles are tagged by spaCy's model en_core_web_sm ({error}): "
            "pip install spacy, then python -m spacy download en_core_web_sm. Only fetching needs it."
        ) from error

    def tag(titles: Iterable[str]) -> Iterator[list[str]]:
        for title in model.pipe(titles, batch_size=256):
            yield [token.text.lower() for token in title if token.pos_ in _NOUNS]

    return tag


def _fetched(url: str, file: Path, kind: type) -> Any:
    download(url, file)
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        file.unlink()
        raise AgentRLError(
            f"{url}: what came is no JSON ({error}) and was deleted; Google Drive answers with a page when too many "
            f"people download. Try later, or download it in a browser and put it at {file}."
        ) from error
    if not isinstance(content, kind):
        raise AgentRLError(f"{file}: a JSON {kind.__name__} is expected; delete it and fetch again.")
    return content


def _records(
    items: list[dict[str, Any]], attributes: dict[str, Any], human: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    seen = {"nan"}
    for item in items:
        asin = item["asin"]
        if asin in seen or len(asin) > _LONGEST_ASIN:
            continue
        seen.add(asin)
        known = attributes.get(asin, {})
        prices, tag = _prices(item.get("pricing"))
        record = {key: item[key] for key in ("asin", "name", "full_description", "small_description")}
        record |= {key: item[key] for key in ("product_category", "category", "query")}
        record |= {"pricing": prices, "Price": tag, "options": _options(item.get("customization_options"))}
        record |= {"Attributes": known.get("attributes", ["DUMMY_ATTR"])}
        if known.get("instruction") is not None:
            record |= {key: known[key] for key in ("instruction", "instruction_attributes")}
        if asin in human:
            record["human_instructions"] = human[asin]
        yield record


def _prices(text: str | None) -> tuple[list[float], str]:
    prices = [float(re.sub(r"[^\d.]", "", part)) for part in (text or "").split("$")[1:]][:2]
    if not prices:
        return [100.0], "$100.0"
    return prices, " to ".join(f"${price}" for price in prices)


def _options(offered: dict[str, list[dict[str, str]] | None] | None) -> dict[str, list[str]]:
    return {
        name.lower(): [content["value"].strip().replace("/", " | ").lower() for content in contents]
        for name, contents in (offered or {}).items()
        if contents is not None
    }


def _counts(records: list[dict[str, Any]]) -> dict[str, int]:
    products = [make_product(record, f"product {record['asin']}") for record in records]
    wanted = [product for product in products if "instruction" in product.record]
    combinations = sum(prod(len(values) for values in product.options.values()) for product in wanted)
    people = sum(len(list(human_goals(product))) for product in products)
    return {"products": len(products), "combinations": combinations, "human goals": people}
