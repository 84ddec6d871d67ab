"""The goals of a shop as a suite: tasks by split, and episodes in the shop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agentbench_rl.config.environment import WebshopEnvironment
from agentbench_rl.envs.base import Demonstrator, Environment
from agentbench_rl.envs.tasks import SplitTasks
from agentbench_rl.envs.webshop.catalogue import Catalogue, load_catalogue, write_catalogue
from agentbench_rl.envs.webshop.engine import ShopEngine
from agentbench_rl.envs.webshop.expert import Shopper
from agentbench_rl.envs.webshop.generator import generate_catalogue
from agentbench_rl.envs.webshop.goals import Goal, human_goals, parse_goal, synthetic_goals
from agentbench_rl.types import AgentRLError, Task

#: Raised with every change of a text, an action or a reward.
VERSION = "webshop-1"
_PRODUCTS = "products.jsonl.gz"


class WebshopSuite(SplitTasks):
    """Goals by split in one catalogue; implements `Suite`."""

    def __init__(self, catalogue: Catalogue, goals: Mapping[str, Iterable[Goal]], page_size: int) -> None:
        self._catalogue = catalogue
        self._page_size = page_size
        goals = {split: list(members) for split, members in goals.items()}
        self._goals = {goal.task_id: goal for members in goals.values() for goal in members}
        tasks = {split: [self._task(goal, split) for goal in members] for split, members in goals.items()}
        super().__init__("WebShop", "goal", VERSION, tasks)

    def make(self) -> Environment:
        """A new episode; its `reset` raises AgentRLError for a task that is not in the suite."""
        return ShopEngine(self._catalogue, self._find_goal, self._page_size)

    def export(self, tasks: Sequence[Task], directory: Path) -> None:
        """Write the goals of each split, and the catalogue, from which `open_games` opens them again."""
        directory.mkdir(parents=True, exist_ok=True)
        write_catalogue(self._catalogue, directory / _PRODUCTS)
        for split in sorted({task.split for task in tasks}):
            chosen = sorted(task.task_id for task in tasks if task.split == split)
            text = "".join(self._goals[task_id].as_json() + "\n" for task_id in chosen)
            (directory / f"games_{split}.jsonl").write_text(text, encoding="utf-8", newline="")

    def demonstrator(self, kind: str, environment: Environment, task: Task, seed: int) -> Demonstrator:
        """The expert `scripted` (reads the pages) or `oracle` (knows the product); raises AgentRLError for others."""
        if kind == "scripted":
            return Shopper().act
        if kind == "oracle":
            return lambda _observation, _executed: environment.expert_action()
        raise AgentRLError(f"WebShop has no expert {kind!r}; there are scripted and oracle.")

    def _task(self, goal: Goal, split: str) -> Task:
        category = self._catalogue.products[goal.asin].category
        return Task(goal.task_id, category, split, goal.content_hash(self._catalogue))

    def _find_goal(self, task: Task) -> Goal:
        self.check(task)
        return self._goals[task.task_id]


def open_source(environment: WebshopEnvironment, counts: Mapping[str, int | None]) -> WebshopSuite:
    """All goals of the products at `environment.data`, or `counts` goals of each split of a generated catalogue."""
    generated = environment.data is None
    catalogue = load_catalogue(environment.data) if environment.data else generate_catalogue(environment.generator)
    goals: dict[str, list[Goal]] = {split: [] for split in counts}
    make = human_goals if environment.goals == "human" else synthetic_goals
    for goal in {goal.task_id: goal for product in catalogue.products.values() for goal in make(product)}.values():
        goals.get(goal.split, []).append(goal)
    if generated:
        goals = {split: _first(members, split, counts[split] or 0) for split, members in goals.items()}
    return WebshopSuite(catalogue, goals, environment.page_size)


def open_games(environment: WebshopEnvironment, games: Path, splits: Sequence[str] | None) -> WebshopSuite:
    """The goals that the panel stage wrote, of these splits (None: all)."""
    names = sorted(file.stem.removeprefix("games_") for file in games.glob("games_*.jsonl"))
    goals = {split: _read_goals(games / f"games_{split}.jsonl") for split in splits or names}
    return WebshopSuite(load_catalogue(games / _PRODUCTS), goals, environment.page_size)


def _first(goals: list[Goal], split: str, count: int) -> list[Goal]:
    """`count` goals of a split; which, does not depend on the order of the products."""
    if count > len(goals):
        raise AgentRLError(
            f"{count} tasks of the split {split!r} are asked for, but the generated catalogue has {len(goals)}; "
            "raise environment.generator.products or option_values."
        )
    return sorted(goals, key=lambda goal: goal.task_id.partition(".")[2])[:count]


def _read_goals(file: Path) -> list[Goal]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise AgentRLError(f"{file}: cannot be read: {error}; draw the panel again.") from error
    return [parse_goal(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1)]
