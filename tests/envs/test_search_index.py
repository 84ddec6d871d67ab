"""Ranking: equal to BM25 as written in the books, deterministic, saved and mapped without a change."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_rl.envs.lucene import K1, B
from agentbench_rl.envs.search.corpus import Passage
from agentbench_rl.envs.search.index import QUERY_WORDS, Library, words
from agentbench_rl.types import AgentRLError

VOCABULARY = ["river", "stone", "cloud", "apple", "horse", "window", "garden", "silver", "engine", "letter"]


def passage(number: int, text: str) -> Passage:
    return Passage(f"p{number:03d}", "", text)


def corpus(seed: int, size: int) -> list[Passage]:
    rng = random.Random(seed)
    return [passage(n, " ".join(rng.choices(VOCABULARY, k=rng.randint(1, 12)))) for n in range(size)]


def plain_bm25(passages: list[Passage], query: list[str]) -> list[float]:
    """Lucene's BM25: log(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b length / mean length))."""
    texts = [words(p.text) for p in passages]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for term, count in Counter(query).items():
            df = sum(term in other for other in texts)
            tf = text.count(term)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            score += count * idf * tf / (tf + K1 * (1 - B + B * len(text) / mean))
        scores.append(score)
    return scores


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.sampled_from([*VOCABULARY, "unknown"]), min_size=1, max_size=5))
def test_ranking_equals_a_plain_bm25_with_ties_by_id(seed: int, query: list[str]) -> None:
    passages = corpus(seed, 30)
    scores = np.round(plain_bm25(passages, words(" ".join(query))), 4)
    order = [n for n in np.lexsort((np.arange(30), -scores)) if scores[n] > 0][:5]
    found = Library(passages).search(" ".join(query), 5)
    assert [scores[n] for n in found] == pytest.approx([scores[n] for n in order], abs=2e-4)
    clear = len(set(scores[scores > 0])) == np.count_nonzero(scores > 0)
    assert not clear or found == order


def test_equal_passages_are_ranked_by_id() -> None:
    library = Library([passage(n, "silver horse") for n in (3, 1, 2, 0)] + [passage(9, "silver silver horse")])
    assert [library.passages[n].id for n in library.search("silver", 3)] == ["p009", "p000", "p001"]


def test_ranking_does_not_depend_on_the_order_of_passages_or_query_words() -> None:
    passages = corpus(5, 200)
    shuffled = random.Random(0).sample(passages, len(passages))
    first, second = Library(passages), Library(shuffled)
    for query in ("river stone cloud", "apple apple horse", "engine letter window silver"):
        backwards = " ".join(reversed(query.split()))
        assert first.search(query, 7) == second.search(query, 7) == first.search(backwards, 7)


def test_only_passages_that_share_a_word_are_found() -> None:
    library = Library([passage(0, "silver horse"), passage(1, "stone")])
    assert library.search("horses", 5) == [0]
    assert library.search("the of and", 5) == []
    assert library.search("nothing known !?", 5) == []
    assert library.search("", 5) == []
    assert library.search("stone silver", 1) == library.search("stone silver", 2)[:1]


def test_long_queries_are_cut() -> None:
    library = Library([passage(0, "silver horse"), passage(1, "stone")])
    assert library.search("the " * (QUERY_WORDS - 1) + "stone silver", 5) == [1]


def test_a_saved_index_is_mapped_and_ranks_the_same(tmp_path: Path) -> None:
    library = Library(corpus(1, 100))
    library.save(tmp_path, "games_train.")
    again = Library.open(tmp_path, "games_train.")
    assert isinstance(again.index.scores["data"], np.memmap)
    assert again.passages == library.passages
    for query in ("river", "cloud apple", "window garden engine"):
        assert again.search(query, 10) == library.search(query, 10)


def test_an_index_of_other_passages_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    Library(corpus(1, 20)).save(tmp_path)
    Library(corpus(2, 20)).save(tmp_path / "other") if (tmp_path / "other").mkdir() is None else None
    (tmp_path / "other" / "passages.jsonl.gz").rename(tmp_path / "passages.jsonl.gz")
    with pytest.raises(AgentRLError, match="other passages"):
        Library.open(tmp_path)
    (tmp_path / "index" / "corpus.json").write_text(json.dumps({"corpus": Library(corpus(2, 20)).hash}))
    data = next((tmp_path / "index").glob("data*.npy"))
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(AgentRLError, match="not a readable index"):
        Library.open(tmp_path)


def test_index_files_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from agentbench_rl.envs.search.generator import generate_world;"
        "from agentbench_rl.envs.search.index import Library;"
        "Library(generate_world(0, 'test', 40).passages()).save(Path(sys.argv[1]))"
    )
    contents = []
    for hash_seed in ("1", "2"):
        directory = tmp_path / hash_seed
        directory.mkdir()
        environment = {"PYTHONPATH": str(Path.cwd()), "PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-c", code, str(directory)], check=True, env=environment)
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        contents.append({str(path.relative_to(directory)): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
