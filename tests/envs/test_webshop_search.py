"""Search: Lucene's rankings on the official products, and what a query may be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from small_shop import small_catalogue

from agentbench_rl.envs.webshop.bm25 import SearchIndex
from agentbench_rl.envs.webshop.catalogue import load_catalogue


def test_rankings_agree_with_lucene(data_dir: Path) -> None:
    catalogue = load_catalogue(data_dir / "webshop")
    with gzip.open(data_dir / "webshop" / "lucene_reference_top50.jsonl.gz", "rt", encoding="utf-8") as lines:
        references = [json.loads(line) for line in lines]
    assert len(references) == 1000
    first = ten = fifty = 0.0
    for reference in references:
        expected = [asin for asin, _ in reference["hits"]]
        found = catalogue.search(reference["query"])
        first += found[0] == expected[0]
        ten += len(set(found[:10]) & set(expected[:10])) / len(expected[:10])
        fifty += len(set(found) & set(expected)) / len(expected)
    assert first >= 975
    assert ten >= 980
    assert fifty >= 985


def test_the_indexed_text_is_the_official_one(data_dir: Path) -> None:
    catalogue = load_catalogue(data_dir / "webshop")
    with gzip.open(data_dir / "webshop" / "products_1000.jsonl.gz", "rt", encoding="utf-8") as lines:
        contents = {record["asin"]: record["contents"] for record in map(json.loads, lines)}
    assert {asin: product.indexed for asin, product in catalogue.products.items()} == contents


def test_a_word_of_which_the_stemmer_leaves_nothing_stays_a_word() -> None:
    index = SearchIndex(["red shoes", "size s"])
    assert index.words("s us shoes") == ["s", "us", "shoe"]
    assert index.best("s", 5) == [1]
    assert SearchIndex(["red shoes"]).best("s", 5) == []


def test_words_are_cut_as_lucene_cuts_them() -> None:
    index = SearchIndex(["nothing"])
    assert index.words("The Men's T-Shirts, 15.5 inch") == ["men", "t", "shirt", "15.5", "inch"]
    assert index.words("running_shoes of café’s") == ["running_sho", "café"]
    assert index.words("the of and") == []


def test_ties_keep_the_order_of_the_products() -> None:
    index = SearchIndex(["red mug", "blue cup", "red mug", "red mug"])
    assert index.best("mug", 2) == [0, 2]
    assert index.best("mug", 50) == [0, 2, 3]


def test_queries_without_a_known_word_find_nothing() -> None:
    search = small_catalogue().search
    assert search("zzz") == search("") == search("the") == search("\U0001f600 \x00") == ()
    assert search("mug " * 5000) == search("mug")
