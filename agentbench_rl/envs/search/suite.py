"""Questions over corpora as a suite: generated worlds of each split, or files with one corpus for all splits.

Files of an export: `games_<split>.questions.jsonl`, and passages with their index, `games_<split>.passages.jsonl.gz`
and `games_<split>.index/` of a generated world, or `passages.jsonl.gz` and `index/` for all splits. Further worlds of a
split have names of the form `games_<split>.<world>.questions.jsonl`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentbench_rl.config.environment import SearchEnvironment
from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.search.answers import normalise
from agentbench_rl.envs.search.corpus import Question, read_questions, write_questions
from agentbench_rl.envs.search.engine import SearchEpisode
from agentbench_rl.envs.search.experts import demonstrator
from agentbench_rl.envs.search.generator import generate_questions, generate_world
from agentbench_rl.envs.search.index import Library
from agentbench_rl.envs.search.problem import Problem
from agentbench_rl.envs.tasks import SplitTasks
from agentbench_rl.types import AgentRLError, Task

#: Raised with every change of a text, a ranking or an outcome.
VERSION = "search-1"
#: Of 10 questions of one file, how many are for training, for validation and for the test.
_PARTS = ("train",) * 7 + ("validation",) + ("test",) * 2
_QUESTIONS = ".questions.jsonl"


@dataclass(frozen=True, slots=True)
class Source:
    """Questions and the corpus they are asked over; `generated`: a made-up world."""

    questions: Sequence[Question]
    library: Library
    generated: bool


class SearchSuite(SplitTasks):
    """Questions by split; implements `Suite`."""

    def __init__(self, splits: Mapping[str, Sequence[Source]], rules: SearchEnvironment) -> None:
        self._sources = splits
        self._rules = rules
        self._problems: dict[str, Problem] = {}
        tasks: dict[str, list[Task]] = {}
        for name, sources in splits.items():
            tasks[name] = [self._add(name, source, question) for source in sources for question in source.questions]
            if len(sources) > 1:
                tasks[name].sort(key=lambda task: (len(task.task_id), task.task_id))
        super().__init__("search", "question", VERSION, tasks)

    def make(self) -> Environment:
        """A new episode; its `reset` raises AgentRLError for a task that is not in the suite."""
        return SearchEpisode(self._find, self._rules)

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """`oracle` knows gold passages and answer; `scripted` reads generated pages, and is an oracle for files.

        Raises AgentRLError for any other kind.
        """
        return demonstrator(kind, environment, self._find(task))

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write the questions of the tasks and the corpora they need, indexed."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, sources in self._sources.items():
            wanted = {task.task_id for task in tasks if task.split == name}
            for number, source in enumerate(sources):
                chosen = [question for question in source.questions if question.qid in wanted]
                if chosen:
                    stem = f"games_{name}.{number}" if number else f"games_{name}"
                    write_questions(directory / f"{stem}{_QUESTIONS}", chosen)
                    if source.generated:
                        source.library.save(directory, f"{stem}.")
        common = [source.library for sources in self._sources.values() for source in sources if not source.generated]
        if common:
            common[0].save(directory)

    def _add(self, split: str, source: Source, question: Question) -> Task:
        problem = Problem(question, source.library, _gold(question, source.library), source.generated)
        self._problems[question.qid] = problem
        return Task(question.qid, question.type, split, _content_hash(problem))

    def _find(self, task: Task) -> Problem:
        self.check(task)
        return self._problems[task.task_id]


def open_source(environment: SearchEnvironment, counts: Mapping[str, int | None]) -> SearchSuite:
    """The questions of the files at `environment.data`, or generated ones, `counts` of each split."""
    if environment.data is not None:
        return SearchSuite(_read_data(environment.data, tuple(counts)), environment)
    settings = environment.generator
    splits = {}
    for split, count in counts.items():
        if split not in environment.splits:
            raise AgentRLError(f"search has no split {split!r}; there are: {', '.join(environment.splits)}.")
        worlds = [generate_world(settings.seed, split, settings.entities, n) for n in range(settings.worlds)]
        questions = generate_questions(worlds, settings.seed, split, count or 0, settings.hops)
        splits[split] = [
            Source(own, Library(world.passages()), generated=True)
            for world, own in zip(worlds, questions, strict=True)
            if own
        ]
    return SearchSuite(splits, environment)


def open_games(environment: SearchEnvironment, games: Path, splits: Sequence[str] | None) -> SearchSuite:
    """The questions and corpora that the panel stage wrote."""
    stems = sorted(file.name.removesuffix(_QUESTIONS) for file in games.glob(f"games_*{_QUESTIONS}"))
    if splits is None:
        splits = list(dict.fromkeys(_split_of_stem(stem) for stem in stems))
    common: Library | None = None
    opened: dict[str, list[Source]] = {}
    for split in splits:
        opened[split] = []
        own = [stem for stem in stems if _split_of_stem(stem) == split]
        for stem in own or [f"games_{split}"]:
            questions = read_questions(games / f"{stem}{_QUESTIONS}")
            generated = (games / f"{stem}.passages.jsonl.gz").exists()
            if not generated and common is None:
                common = Library.open(games)
            library = Library.open(games, f"{stem}.") if generated else common
            assert library is not None
            opened[split].append(Source(questions, library, generated))
    return SearchSuite(opened, environment)


def _read_data(directory: Path, splits: Sequence[str]) -> dict[str, list[Source]]:
    """`questions_<split>.jsonl` where it exists; else the questions of `questions.jsonl` that fall into the split."""
    if not directory.is_dir():
        raise AgentRLError(
            f"environment.data: {directory} is not a directory; it must hold passages.jsonl.gz and questions.jsonl"
        )
    library = Library.open(directory)
    opened = {}
    for split in splits:
        own = directory / f"questions_{split}.jsonl"
        if own.exists():
            questions = read_questions(own)
        else:
            questions = [q for q in read_questions(directory / "questions.jsonl") if _split_of(q) == split]
        opened[split] = [Source(questions, library, generated=False)]
    return opened


def _split_of_stem(stem: str) -> str:
    return stem.removeprefix("games_").partition(".")[0]


def _split_of(question: Question) -> str:
    """The split of a question, by its id: stable when other questions come or go."""
    return _PARTS[int.from_bytes(hashlib.sha256(question.qid.encode()).digest()[:4], "big") % len(_PARTS)]


def _gold(question: Question, library: Library) -> tuple[int, ...]:
    missing = [id_ for id_ in question.gold if id_ not in library.numbers]
    if missing:
        raise AgentRLError(f"question {question.qid!r}: its gold passage {missing[0]!r} is not in the corpus")
    return tuple(dict.fromkeys(library.numbers[id_] for id_ in question.gold))


def _content_hash(problem: Problem) -> str:
    """Questions of the same words in the same corpus are the same, whatever their ids."""
    question = problem.question
    content = [normalise(question.question), question.answers, question.gold, problem.library.hash]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
