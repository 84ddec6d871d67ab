"""Lucene's English stop words, and BM25's constants as Anserini sets them."""

from __future__ import annotations

K1, B = 0.9, 0.4
_STOPPED = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOPPED.split())
