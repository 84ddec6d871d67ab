"""H = -sum_v p_v ln p_v at a decision boundary: over which token it is taken, and what top-k log-probs tell of it.

Source: BPO (arXiv 2607.14171, section 4.1): the distribution of the response's first token, at temperature 1, over the
full vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agentbench_rl.types import AgentRLError

#: Metric of the stages that sample: 1 where the sampler tells only its most likely tokens.
LOWER_BOUNDS = "entropies_are_lower_bounds"
#: What rounding may add to a sum of probabilities.
_ROUNDING = 1e-3


def top_k_entropy(logprobs: Sequence[float]) -> float:
    """Entropy (nats) of the k most likely tokens [k] and ONE bin of all others: a lower bound, exact where k is all.

    Nothing is renormalised: that would raise the entropy of what is left. Raises AgentRLError for log-probs whose
    probabilities sum to more than 1.
    """
    probabilities = [math.exp(logprob) for logprob in logprobs]
    total = math.fsum(probabilities)
    if not total <= 1.0 + _ROUNDING:
        raise AgentRLError(f"log-probs of a sampler: the probabilities of {len(probabilities)} tokens sum to {total}")
    bins = [*probabilities, max(0.0, 1.0 - total)]
    return math.fsum(-p * math.log(p) for p in bins if p > 0.0)


def boundary_token(response_ids: Sequence[int], prefix: str, decode: Callable[[Sequence[int]], str]) -> int:
    """Index of the response's first token that is no part of the protocol's `prefix`, such as `<think>`.

    White space around the prefix is part of it; of a response that is nothing else, it is the last token. decode:
    the text of token ids, without special tokens and outer white space.
    """
    if not prefix:
        return 0
    free = (i for i in range(len(response_ids)) if not prefix.strip().startswith(decode(response_ids[: i + 1])))
    return next(free, len(response_ids) - 1)
