"""BM25 over a corpus (Robertson and Zaragoza 2009, Lucene's variant): built once, saved, and memory-mapped.

Words are lower-cased runs of letters, digits and underscores without Lucene's English stop words, stemmed by Porter's
algorithm; k1 and b are Anserini's. Passages of equal score are ranked by id.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agentbench_rl.envs.lucene import K1, STOP_WORDS, B
from agentbench_rl.envs.search.corpus import Passage, corpus_hash, read_passages, write_passages
from agentbench_rl.types import AgentRLError

#: Longer queries are cut, so that a search is quick whatever is asked.
QUERY_WORDS = 256
_WORD = re.compile(r"\w+")
_ABOUT = "corpus.json"
_PASSAGES = "passages.jsonl.gz"
_INDEX = "index"


class Library:
    """A corpus and its index; `passages` are sorted by id."""

    def __init__(self, passages: Sequence[Passage], index: Any = None) -> None:
        self.passages = tuple(sorted(passages))
        self.numbers = {passage.id: number for number, passage in enumerate(self.passages)}
        self._index = index

    @classmethod
    def open(cls, directory: Path, prefix: str = "") -> Library:
        """Read `<prefix>passages.jsonl.gz`, and map `<prefix>index/` where there is one.

        Raises AgentRLError when a file is missing or damaged, or when the index is of other passages.
        """
        library = cls(read_passages(directory / f"{prefix}{_PASSAGES}"))
        if (directory / f"{prefix}{_INDEX}").is_dir():
            library._index = _load(directory / f"{prefix}{_INDEX}", library.hash)
        return library

    def save(self, directory: Path, prefix: str = "") -> None:
        """Write passages and index, from which `open` makes an equal library."""
        write_passages(directory / f"{prefix}{_PASSAGES}", self.passages)
        self.save_index(directory, prefix)

    def save_index(self, directory: Path, prefix: str = "") -> None:
        """Write the index alone, beside passages that are there already."""
        target = directory / f"{prefix}{_INDEX}"
        self.index.save(target, show_progress=False)
        (target / _ABOUT).write_text(json.dumps({"schema": 1, "corpus": self.hash}) + "\n", encoding="utf-8")

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the passages."""
        return corpus_hash(self.passages)

    @property
    def index(self) -> Any:
        """The index, built when first needed."""
        if self._index is None:
            self._index = _build(self.passages)
        return self._index

    def search(self, query: str, k: int) -> list[int]:
        """Numbers of the (at most) `k` best passages that share a word with the query, the best first."""
        vocabulary = self.index.vocab_dict
        terms = Counter(vocabulary[word] for word in words(query, QUERY_WORDS) if word in vocabulary)
        if not terms:
            return []
        # Sorted: sums of float32 depend on the order, and the order of words must not matter.
        scores = self.index.get_scores_from_ids(sorted(terms.elements()))
        k = min(k, len(self.passages))
        least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= least if least > 0 else scores > 0)
        ranked = candidates[np.lexsort((candidates, -scores[candidates]))]
        return [int(number) for number in ranked[:k]]


def words(text: str, limit: int | None = None) -> list[str]:
    """The index terms of a text, stop words left out; `limit` cuts the words, stop words included."""
    found = _WORD.findall(text.lower())[:limit]
    return [_stem(word) for word in found if word not in STOP_WORDS]


@lru_cache(1 << 18)
def _stem(word: str) -> str:
    return str(_stemmer()(word))


@lru_cache(1)
def _stemmer() -> Callable[[str], str]:
    from Stemmer import Stemmer

    stem: Callable[[str], str] = Stemmer("porter").stemWord
    return stem


def _build(passages: Iterable[Passage]) -> Any:
    from bm25s import BM25
    from bm25s.tokenization import Tokenized

    texts = [words(f"{passage.title} {passage.text}") for passage in passages]
    vocabulary = {word: number for number, word in enumerate(sorted({word for text in texts for word in text}))}
    index = BM25(method="lucene", k1=K1, b=B, backend="numpy")
    ids = [[vocabulary[word] for word in text] for text in texts]
    index.index(Tokenized(ids=ids, vocab=vocabulary), create_empty_token=False, show_progress=False)
    return index


def _load(directory: Path, expected: str) -> Any:
    from bm25s import BM25

    try:
        about = json.loads((directory / _ABOUT).read_text(encoding="utf-8"))
        if about.get("corpus") == expected:
            return BM25.load(directory, mmap=True)
    except (OSError, ValueError, KeyError, AttributeError, EOFError) as error:
        raise AgentRLError(f"{directory}: not a readable index ({error}); delete it, it is built anew") from None
    raise AgentRLError(f"{directory}: the index of other passages; delete it, it is built anew")
