"""The process that compares answers by math-verify; run as a script, so that it can be killed.

One JSON object per line in, `{"gold": …, "answer": …}`; out comes `gold` once the gold answer is understood, then
`{"equal": …, "parsed": …}`, or instead of either `{"error": …}`. A comparison that uses more processor time than the
deadline ends the process by SIGPROF, inside a library's C code too.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

MEMORY_BYTES = 3 << 30


def main(deadline: float) -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    logging.disable(logging.CRITICAL)
    import math_verify
    import sympy.core.random

    config = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]

    @lru_cache(maxsize=4096)
    def parsed(answer: str) -> list[Any]:
        text = f"\\boxed{{{answer}}}"
        return list(math_verify.parse(text, config, parsing_timeout=None, raise_on_error=True))

    @lru_cache(maxsize=4096)
    def understood(gold: str) -> list[Any]:
        """The known answer, after it was compared with itself and with a number: what hangs here is its fault."""
        known = parsed(gold)
        math_verify.verify(known, parsed("7919"), timeout_seconds=None, raise_on_error=True)
        if not math_verify.verify(known, known, timeout_seconds=None, raise_on_error=True):
            raise ValueError("it is not equal to itself")
        return known

    _say("ready")
    for line in sys.stdin:
        request = json.loads(line)
        random.seed(0)
        sympy.core.random.seed(0)
        signal.setitimer(signal.ITIMER_PROF, deadline)
        try:
            gold = understood(request["gold"])
        except Exception as error:
            _say(json.dumps({"error": f"{type(error).__name__}: {error}"}))
            continue
        _say("gold")
        signal.setitimer(signal.ITIMER_PROF, deadline)
        try:
            answer = parsed(request["answer"])
            equal = bool(answer) and math_verify.verify(gold, answer, timeout_seconds=None, raise_on_error=True)
            result = {"equal": equal, "parsed": any(not isinstance(part, str) for part in answer)}
        except Exception as error:
            result = {"equal": False, "parsed": False, "reason": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(json.dumps(result))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
