"""Generated problems: chains of sums and products of graded length, or the datasets of reasoning-gym.

Every split has its own seeded stream. A question belongs to the split that its hash says, and occurs once, so panels
are disjoint whatever their seeds and sizes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import islice

from agentbench_rl.config.environment import MathGenerator
from agentbench_rl.envs.math.calculator import display, evaluate, steps
from agentbench_rl.envs.math.gym import gym_problems
from agentbench_rl.envs.math.problems import Digits, Problem, belongs_to, question_hash
from agentbench_rl.types import AgentRLError

DIGITS: Digits = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
#: So many problems in a row that are known already, or another split's, mean that there are no more.
_PATIENCE = 5000


def generate_problems(settings: MathGenerator, split: str, count: int) -> list[Problem]:
    """The first `count` problems of a split; more of them start with the same ones.

    Raises AgentRLError when the settings allow fewer distinct problems.
    """
    problems = list(islice(_distinct(settings, split), count))
    if len(problems) < count:
        raise AgentRLError(
            f"environment.generator: {count} problems of split {split!r} are asked for, and only {len(problems)} "
            "distinct ones were found; ask for fewer, or raise terms or digits"
        )
    return problems


def _distinct(settings: MathGenerator, split: str) -> Iterator[Problem]:
    seen: set[str] = set()
    misses = 0
    for problem in _stream(settings, split):
        key = question_hash(problem.question)
        if key in seen or not belongs_to(problem.question, split, DIGITS):
            misses += 1
            if misses > _PATIENCE:
                return
            continue
        misses = 0
        seen.add(key)
        yield problem


def _stream(settings: MathGenerator, split: str) -> Iterator[Problem]:
    digest = hashlib.sha256(f"math/{settings.seed}/{split}".encode()).digest()
    seed = int.from_bytes(digest[:6], "big")
    if settings.reasoning_gym:
        yield from gym_problems(settings.reasoning_gym, seed)
    rng = random.Random(seed)
    while True:
        yield arithmetic_problem(settings, rng)


def arithmetic_problem(settings: MathGenerator, rng: random.Random) -> Problem:
    """One chain such as `4 + 13 - 2 =`; with `brackets`, a part of two terms or more may stand in parentheses."""
    terms = rng.randint(*settings.terms)
    parts = [str(_number(rng, rng.randint(*settings.digits)))]
    for _ in range(terms - 1):
        parts += [rng.choice(settings.operators), str(_number(rng, rng.randint(*settings.digits)))]
    if settings.brackets and terms > 2 and rng.random() < 0.5:
        first = rng.randrange(terms - 1)
        last = rng.randrange(first + 1, terms if first else terms - 1)
        parts[2 * first] = "(" + parts[2 * first]
        parts[2 * last] += ")"
    expression = " ".join(parts)
    answer = display(evaluate(expression))
    return Problem(f"sums-{terms}", f"{expression} =", answer, "number", tuple(steps(expression)))


def _number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
