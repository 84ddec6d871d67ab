"""Exact match and F1 of an answer, as the scripts of SQuAD (Rajpurkar et al. 2016) and HotpotQA (2018) count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: HotpotQA's script gives these no partial credit.
_CLOSED = frozenset({"yes", "no", "noanswer"})


def normalise(text: str) -> str:
    """Lower case without punctuation, articles and surplus white space; a text of nothing else is kept as it is."""
    bare = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(bare.split()) or " ".join(text.lower().split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the normalised answer equals one of the normalised gold answers."""
    given = normalise(answer)
    return any(given == normalise(gold) for gold in golds)


def f1_score(answer: str, golds: Sequence[str]) -> float:
    """Largest F1 of the words that the answer shares with a gold answer, in [0, 1]."""
    return max((_f1(normalise(answer), normalise(gold)) for gold in golds), default=0.0)


def _f1(given: str, gold: str) -> float:
    if given == gold:
        return 1.0
    if given in _CLOSED or gold in _CLOSED:
        return 0.0
    words, wanted = given.split(), gold.split()
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted)) if shared else 0.0
