"""Mathematical problems as a suite: tasks by split, and their episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from agentbench_rl.config.environment import MathEnvironment
from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.math.benchmarks import load_benchmark
from agentbench_rl.envs.math.environment import MathEpisode
from agentbench_rl.envs.math.generator import generate_problems
from agentbench_rl.envs.math.grading import Grader
from agentbench_rl.envs.math.problems import Problem, read_problems, write_problems
from agentbench_rl.envs.tasks import SplitTasks
from agentbench_rl.types import AgentRLError, Task

#: Raised with every change of a text, the grammar or an outcome.
VERSION = "math-1"


class MathSuite(SplitTasks):
    """Problems by split; implements `Suite`. Its episodes share one grader."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]], environment: MathEnvironment) -> None:
        self._environment = environment
        self._problems = {problem.task_id: problem for members in problems.values() for problem in members}
        tasks = {split: [_task(problem, split) for problem in members] for split, members in problems.items()}
        super().__init__("Mathematics", "problem", _version(self._problems.values()), tasks)
        self._grader = Grader()

    def make(self) -> Environment:
        """A new episode; its `reset` raises AgentRLError for a task that is not in the suite."""
        settings = self._environment
        return MathEpisode(self._find, self._grader, settings.answer_format, settings.calculator)

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """The expert `scripted`: it knows the steps and the answer. Raises AgentRLError for any other kind."""
        if kind != "scripted":
            raise AgentRLError(f"demos.expert: mathematics has no expert {kind!r}; there is scripted.")
        return lambda _observation, _executed: environment.expert_action()

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write `games_<split>.jsonl` with the problems of the tasks."""
        directory.mkdir(parents=True, exist_ok=True)
        for split in sorted({task.split for task in tasks}):
            members = [self._find(task) for task in tasks if task.split == split]
            write_problems(members, directory / f"games_{split}.jsonl")

    def _find(self, task: Task) -> Problem:
        self.check(task)
        return self._problems[task.task_id]


def open_source(environment: MathEnvironment, counts: Mapping[str, int | None]) -> MathSuite:
    """The problems of `environment.benchmark` in `environment.data`, or generated ones, `counts` of each split."""
    unknown = sorted(set(counts) - set(environment.splits))
    if unknown:
        raise AgentRLError(f"Mathematics has no split {unknown[0]!r}; there are: {', '.join(environment.splits)}.")
    data = environment.data
    if data is not None:
        problems = {split: load_benchmark(environment.benchmark, data, split) for split in counts}
    else:
        problems = {
            split: generate_problems(environment.generator, split, count or 0) for split, count in counts.items()
        }
    return MathSuite(problems, environment)


def open_games(environment: MathEnvironment, games: Path, splits: Sequence[str] | None) -> MathSuite:
    """The problems that the panel stage wrote."""
    if splits is None:
        splits = [split for split in environment.splits if (games / f"games_{split}.jsonl").is_file()]
    return MathSuite({split: read_problems(games / f"games_{split}.jsonl") for split in splits}, environment)


def _task(problem: Problem, split: str) -> Task:
    return Task(problem.task_id, problem.task_type, split, problem.content_hash)


def _version(problems: Iterable[Problem]) -> str:
    """Version of the environment, and of math-verify where it grades."""
    by_math_verify = any(problem.grading == "math" for problem in problems)
    return f"{VERSION}, math-verify {version('math-verify')}" if by_math_verify else VERSION
