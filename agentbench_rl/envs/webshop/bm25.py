"""Full-text search as WebShop's Lucene index does it: BM25 with k1 = 0.9, b = 0.4 (Anserini's defaults).

Text is cut at Unicode word boundaries (UAX #29), possessives and Lucene's 33 English stop words go, and Porter's
algorithm stems the rest. Lucene stores the length of a document in one byte; here it is exact, so that near ties may
be ordered otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import bm25s
import numpy as np
import Stemmer

from agentbench_rl.envs.lucene import K1, STOP_WORDS, B

#: Words of letters, digits and underscores; an apostrophe, full stop or colon joins letters, and a stop, comma or
#: semicolon joins digits.
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])['’.:·](?=[^\W\d_])|(?<=\d)['’.,;](?=\d))\w+)*")
_POSSESSIVES = ("'s", "’s")


class SearchIndex:
    """BM25 over the texts of documents, which are known by their positions."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._stem = Stemmer.Stemmer("porter").stemWords
        self._size = len(texts)
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene")
        self._index.index([self.words(text) for text in texts], show_progress=False)

    def words(self, text: str) -> list[str]:
        """Stems of a text, in order."""
        words = [word[:-2] if word.endswith(_POSSESSIVES) else word for word in map(str.lower, _WORD.findall(text))]
        words = [word for word in words if word not in STOP_WORDS]
        # Lucene's stemmer leaves words of two letters alone; the published algorithm leaves nothing of "s".
        return [stem if len(word) > 2 else word for word, stem in zip(words, self._stem(words), strict=True)]

    def best(self, query: str, most: int) -> list[int]:
        """Positions of the documents that share a word with the query, best first; ties keep their order."""
        known = [word for word in self.words(query) if word in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        most = min(most, self._size)
        threshold = max(np.partition(scores, -most)[-most], np.finfo(scores.dtype).tiny)
        candidates = np.flatnonzero(scores >= threshold)
        order = np.argsort(-scores[candidates], kind="stable")[:most]
        return [int(position) for position in candidates[order]]
