"""Problems of reasoning-gym (an optional extra): datasets whose answers are graded here without executing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from agentbench_rl.envs.math.calculator import CalculatorError, MalformedExpressionError, display, evaluate, steps
from agentbench_rl.envs.math.problems import Grading, Problem
from agentbench_rl.types import AgentRLError

#: How the answers of each dataset are graded. Datasets whose own scoring evaluates the answer as code are not here;
#: countdown is graded by this package's calculator instead.
DATASETS: Mapping[str, Grading] = {
    "basic_arithmetic": "number",
    "chain_sum": "number",
    "count_bits": "number",
    "countdown": "countdown",
    "decimal_chain_sum": "number",
    "dice": "text",
    "gcd": "number",
    "gsm_symbolic": "number",
    "knights_knaves": "text",
    "lcm": "number",
    "leg_counting": "number",
    "number_sequence": "number",
    "prime_factorization": "text",
    "products": "number",
    "simple_equations": "number",
}
#: Items per opened dataset; an item's index is added to the dataset's seed, so the next ones continue the stream.
_SIZE = 1 << 14


def gym_problems(datasets: Mapping[str, Mapping[str, Any]], seed: int) -> Iterator[Problem]:
    """Endless problems, one of each dataset in turn; `datasets`: their settings by name.

    Raises AgentRLError when reasoning-gym is not installed, or for an unknown dataset or setting.
    """
    for first in count(seed, _SIZE):
        sources = [_open(name, settings, first) for name, settings in sorted(datasets.items())]
        for index in range(_SIZE):
            for name, dataset in sources:
                problem = _problem(name, dataset, index)
                if problem is not None:
                    yield problem


def _open(name: str, settings: Mapping[str, Any], seed: int) -> tuple[str, Any]:
    where = f"environment.generator.reasoning_gym.{name}"
    if name not in DATASETS:
        raise AgentRLError(f"{where}: not among the known datasets: {', '.join(DATASETS)}")
    try:
        from reasoning_gym.factory import create_dataset
    except ImportError as error:
        raise AgentRLError(
            f"{where}: reasoning-gym cannot be imported ({error}); pip install 'agentbench-rl[reasoning-gym]'"
        ) from None
    try:
        return name, create_dataset(name, **{**settings, "seed": seed, "size": _SIZE})
    except (TypeError, ValueError, AssertionError) as error:
        raise AgentRLError(f"{where}: {error}") from None


def _problem(name: str, dataset: Any, index: int) -> Problem | None:
    """The item as a problem; None where its own scoring refuses its answer, or no value can be computed."""
    item = dataset[index]
    answer = str(item["answer"]).strip()
    if DATASETS[name] == "countdown":
        if dataset.score_answer(answer, item) != 1.0:
            return None
        answer = answer.replace(" ", "")
    expression = str(item["metadata"].get("expression", "")).replace("×", "*")
    return Problem(name, str(item["question"]), answer, DATASETS[name], _steps(expression, answer))


def _steps(expression: str, answer: str) -> tuple[str, ...]:
    """The operations of an item's expression, where that leads to the item's answer."""
    try:
        if expression and display(evaluate(expression)) == answer:
            return tuple(steps(expression))
    except (MalformedExpressionError, CalculatorError):
        pass
    return ()
