"""Fetching the official products: conversion, resuming, and what happens when the files are not what they should be."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbench_rl.envs.webshop.catalogue import load_catalogue
from agentbench_rl.envs.webshop.fetch import SOURCES, Source, Tagger, fetch, spacy_tagger
from agentbench_rl.envs.webshop.goals import human_goals, synthetic_goals
from agentbench_rl.types import AgentRLError

ITEM = {
    "asin": "B000000001",
    "name": "Walnut Desk and Walnut Shelf",
    "full_description": "Of wood.",
    "small_description": ["Solid."],
    "pricing": "$1,250.50$1,300.00",
    "product_category": "Home › Desks",
    "category": "garden",
    "query": " Desks ",
    "customization_options": {"Color": [{"value": " Dark/Light "}, {"value": "RED"}], "Size": None},
    "brand": "x",
}
ATTRIBUTES = {"attributes": ["solid wood"], "instruction": "Find me solid wood desks"}
PERSON = {"instruction": "a red desk.", "instruction_attributes": ["solid wood"], "instruction_options": ["red"]}


def nouns() -> Tagger:
    def tag(titles: Iterable[str]) -> Iterator[list[str]]:
        yield from ([word for word in title.lower().split() if word != "and"] for title in titles)

    return tag


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Source]:
    """Addresses of small raw files, as Google Drive would send them."""
    items: list[dict[str, Any]] = [
        ITEM,
        ITEM | {"name": "the same again"},
        ITEM | {"asin": "B00000000000001"},
        ITEM | {"asin": "B000000002", "pricing": None, "customization_options": {}, "small_description": "One text"},
    ]
    contents = {
        "items": items,
        "attributes": {"B000000001": ATTRIBUTES | {"instruction_attributes": ["solid wood"]}},
        "human": {"B000000001": [PERSON, PERSON | {"instruction_attributes": []}]},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    urls = [(tmp_path / name).as_uri() for name in contents]
    return {"small": Source(*urls, products=2, combinations=2)}


def test_the_products_become_what_the_shop_shows(sources: dict[str, Source], tmp_path: Path) -> None:
    target = tmp_path / "data"
    counts = fetch(target, "small", sources, nouns)
    assert counts == {"products": 2, "combinations": 2, "human goals": 1}
    desk, other = load_catalogue(target).products.values()
    assert desk.options == {"color": ("dark | light", "red")}
    assert desk.price_tag == "$1250.5 to $1300.0"
    assert 1250.5 <= desk.price <= 1300.0
    assert (desk.query, desk.attributes) == ("desks", ("solid wood",))
    assert desk.nouns == ("walnut", "desk", "walnut", "shelf")
    assert (other.price, other.price_tag, other.features, other.attributes) == (
        100.0,
        "$100.0",
        ("One text",),
        ("DUMMY_ATTR",),
    )
    assert [goal.options for goal in synthetic_goals(desk)] == [(("color", "dark | light"),), (("color", "red"),)]
    assert [goal.options for goal in human_goals(desk)] == [("red",)]
    assert list(synthetic_goals(other)) == []


def test_a_download_is_resumed_and_not_repeated(sources: dict[str, Source], tmp_path: Path) -> None:
    fetch(tmp_path / "data", "small", sources, nouns)
    first = (tmp_path / "data" / "products_small.jsonl.gz").read_bytes()
    for name in ("items", "attributes", "human"):
        (tmp_path / name).unlink()
    fetch(tmp_path / "data", "small", sources, nouns)
    assert (tmp_path / "data" / "products_small.jsonl.gz").read_bytes() == first


def test_another_number_of_products_is_refused(sources: dict[str, Source], tmp_path: Path) -> None:
    short = {"small": Source(sources["small"].items, sources["small"].attributes, sources["small"].human, 1000)}
    with pytest.raises(AgentRLError, match="2 products instead of 1000; delete it and fetch again"):
        fetch(tmp_path / "data", "small", short, nouns)
    assert not list((tmp_path / "data").glob("products*.gz"))


def test_a_page_instead_of_the_file_is_noticed_and_deleted(sources: dict[str, Source], tmp_path: Path) -> None:
    (tmp_path / "attributes").write_text("<html>Too many users</html>", encoding="utf-8")
    with pytest.raises(AgentRLError, match="no JSON"):
        fetch(tmp_path / "data", "small", sources, nouns)
    assert [file.name for file in (tmp_path / "data" / "raw").iterdir()] == ["items_small.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "a JSON list is expected"), ('[{"asin": "B1"}]', "not as WebShop's are"), ("[3]", "not as WebShop's are")],
)
def test_another_form_is_refused(sources: dict[str, Source], tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "items").write_text(content, encoding="utf-8")
    with pytest.raises(AgentRLError, match=message):
        fetch(tmp_path / "data", "small", sources, nouns)


def test_a_failing_network_is_told_with_the_place_of_the_file(sources: dict[str, Source], tmp_path: Path) -> None:
    (tmp_path / "human").unlink()
    with pytest.raises(AgentRLError, match=r"cannot be downloaded .* put it at .*human_instructions\.json"):
        fetch(tmp_path / "data", "small", sources, nouns)


def test_unknown_sets_and_a_missing_tagger_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentRLError, match="no set 'tiny'; there are: small, all"):
        fetch(tmp_path, "tiny")
    plain = builtins.__import__

    def without_spacy(name: str, *rest: Any) -> Any:
        if name == "spacy":
            raise ImportError("no spacy here")
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_spacy)
    with pytest.raises(AgentRLError, match="python -m spacy download en_core_web_sm"):
        spacy_tagger()


def test_the_official_addresses_are_those_of_the_published_script() -> None:
    assert SOURCES["small"].items.endswith("id=1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib")
    assert SOURCES["all"].items.endswith("id=1A2whVgOO0euk5O13n2iYDM0bQRkkRduB")
    assert SOURCES["small"].human == SOURCES["all"].human
