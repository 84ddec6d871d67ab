"""Generated problems: the same for a seed, distinct, in one split each, and solved by their own steps."""

from __future__ import annotations

from typing import Any

import pytest

from agentbench_rl.config.environment import MathEnvironment, MathGenerator
from agentbench_rl.envs import open_source
from agentbench_rl.envs.math.calculator import display, evaluate
from agentbench_rl.envs.math.generator import generate_problems
from agentbench_rl.envs.math.grading import Grade, Grader
from agentbench_rl.envs.math.gym import DATASETS
from agentbench_rl.envs.math.problems import Problem
from agentbench_rl.types import AgentRLError

SPLITS = ("train", "validation", "test")
LARGE = MathGenerator(operators=("+", "-", "*"), terms=(2, 5), digits=(1, 3), brackets=True)


def test_equal_settings_give_equal_problems_and_more_of_them_start_with_the_same() -> None:
    assert generate_problems(LARGE, "train", 50) == generate_problems(LARGE, "train", 80)[:50]


def test_another_seed_gives_other_problems() -> None:
    one, other = (generate_problems(LARGE.model_copy(update={"seed": seed}), "train", 50) for seed in (0, 1))
    assert not set(one) & set(other)


def test_no_question_is_in_two_splits_whatever_the_seeds() -> None:
    """The space is small enough for the streams of all splits to meet often."""
    small = [MathGenerator(seed=seed, terms=(2, 2)) for seed in range(3)]
    drawn = {split: {p.question for s in small for p in generate_problems(s, split, 12)} for split in SPLITS}
    assert len(drawn["train"] | drawn["validation"] | drawn["test"]) == sum(map(len, drawn.values()))


def test_questions_of_a_split_are_distinct() -> None:
    problems = generate_problems(MathGenerator(terms=(2, 2)), "train", 130)
    assert len({problem.question for problem in problems}) == len({problem.task_id for problem in problems}) == 130


def test_asking_for_more_than_there_are_is_told() -> None:
    with pytest.raises(AgentRLError, match=r"200 problems of split 'test' are asked for, and only \d+ distinct"):
        generate_problems(MathGenerator(terms=(2, 2), operators=("+",)), "test", 200)


@pytest.mark.parametrize("settings", [MathGenerator(), LARGE], ids=["default", "large"])
def test_answers_and_last_steps_are_the_values_of_the_questions(settings: MathGenerator) -> None:
    for problem in generate_problems(settings, "train", 200):
        value = evaluate(problem.question.removesuffix(" ="))
        assert problem.answer == display(value) == display(evaluate(problem.steps[-1]))
        assert problem.task_type == f"sums-{len(problem.steps) + 1}"


def test_sizes_are_kept() -> None:
    settings = MathGenerator(terms=(3, 3), digits=(2, 2), operators=("*",))
    for problem in generate_problems(settings, "train", 50):
        numbers = problem.question.removesuffix(" =").split(" * ")
        assert [len(number) for number in numbers] == [2, 2, 2]


@pytest.mark.parametrize(
    "wrong", [{"terms": (3, 2)}, {"digits": (0, 1)}, {"operators": ()}, {"operators": ("/",)}, {"terms": (1, 2)}]
)
def test_impossible_sizes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"terms|digits|operators"):
        MathGenerator(**wrong)


def gym(name: str, **settings: Any) -> MathGenerator:
    return MathGenerator(reasoning_gym={name: settings})


@pytest.mark.parametrize("name", DATASETS)
def test_own_answers_of_reasoning_gym_are_right_and_others_wrong(name: str) -> None:
    pytest.importorskip("reasoning_gym")
    grader = Grader()
    for problem in generate_problems(gym(name), "train", 3):
        assert grader.grade(problem, problem.answer) == Grade(correct=True, readable=True)
        assert not grader.grade(problem, "41041").correct


def test_steps_of_reasoning_gym_lead_to_the_answer() -> None:
    pytest.importorskip("reasoning_gym")
    problems = generate_problems(gym("chain_sum", min_terms=2, max_terms=4, max_digits=2), "train", 30)
    assert all(display(evaluate(problem.steps[-1])) == problem.answer for problem in problems)


def test_datasets_take_turns() -> None:
    pytest.importorskip("reasoning_gym")
    problems = generate_problems(MathGenerator(reasoning_gym={"gcd": {}, "lcm": {}}), "train", 40)
    assert {"gcd", "lcm"} == {problem.task_type for problem in problems}


def test_streams_of_reasoning_gym_are_repeatable_and_disjoint() -> None:
    pytest.importorskip("reasoning_gym")
    settings = gym("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    assert generate_problems(settings, "train", 20) == generate_problems(settings, "train", 20)
    drawn = [{problem.question for problem in generate_problems(settings, split, 12)} for split in SPLITS]
    assert not drawn[0] & drawn[1] | drawn[0] & drawn[2] | drawn[1] & drawn[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (gym("sudoku"), "sudoku: not among the known datasets: basic_arithmetic"),
        (gym("gcd", colour=1), "gcd: .*colour"),
        (gym("chain_sum", min_terms=5, max_terms=2), "chain_sum: "),
    ],
)
def test_mistakes_in_the_settings_of_reasoning_gym_are_told(settings: MathGenerator, message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(AgentRLError, match=f"environment.generator.reasoning_gym.{message}"):
        generate_problems(settings, "train", 1)


def test_an_unknown_split_is_told() -> None:
    with pytest.raises(AgentRLError, match="no split 'dev'; there are: train, validation, test"):
        open_source(MathEnvironment(name="math"), {"dev": 3})


def test_equal_questions_with_other_answers_are_other_tasks_by_content() -> None:
    one, other = Problem("sums-2", "1 + 1 =", "2", "number"), Problem("sums-2", "1 + 1 =", "3", "number")
    assert one.task_id == other.task_id
    assert one.content_hash != other.content_hash
