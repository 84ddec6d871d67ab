"""One episode in the shop: actions `search[…]` and `click[…]`, and WebShop's reward when something is bought.

The state is a value (goal, page, steps), so that a snapshot or a fork is a reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from agentbench_rl.envs.webshop import pages
from agentbench_rl.envs.webshop.catalogue import Catalogue
from agentbench_rl.envs.webshop.goals import Goal
from agentbench_rl.envs.webshop.oracle import next_click
from agentbench_rl.envs.webshop.pages import Page
from agentbench_rl.envs.webshop.reward import purchase_reward
from agentbench_rl.types import InfrastructureError, Observation, StepResult, Task

_ACTION = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Goal, page and number of steps taken."""

    goal: Goal
    page: Page
    steps: int


class ShopEngine:
    """One episode; implements `Environment`.

    A search is possible on every page, as in WebShop, so that the action space is open; `admissible` lists the
    buttons. `find_goal` returns the goal of a task, `page_size` is the number of products on a page of results.
    """

    __slots__ = ("_catalogue", "_find_goal", "_now", "_page_size", "_worth")

    _now: Snapshot
    #: The reward that buying now would pay, once it is asked for.
    _worth: float | None

    def __init__(self, catalogue: Catalogue, find_goal: Callable[[Task], Goal], page_size: int) -> None:
        self._catalogue = catalogue
        self._find_goal = find_goal
        self._page_size = page_size

    def reset(self, task: Task) -> Observation:
        """Start at the search page; raises AgentRLError for an unknown task or one of other content."""
        self._enter(Snapshot(self._find_goal(task), pages.START, 0))
        return Observation(self._text())

    def step(self, action: str) -> StepResult:
        """Search or click; an action that is neither, or a click on no button, leaves the page as it is.

        Buying ends the episode and pays its reward. Raises InfrastructureError after the end.
        """
        now = self.snapshot()
        if now.page.kind == "done":
            raise InfrastructureError("WebShop: the episode is over; reset or restore comes first.")
        match = _ACTION.fullmatch(action.strip())
        page = self._target(*match.groups()) if match else now.page
        self._enter(Snapshot(now.goal, page, now.steps + 1))
        worth, done = self.process_reward(), page.kind == "done"
        return StepResult(
            observation=self._text(),
            reward=worth if done else 0.0,
            done=done,
            success=done and worth == 1.0,
            process_reward=worth,
            valid=match is not None,
        )

    def snapshot(self) -> Snapshot:
        """The moment as a value."""
        try:
            return self._now
        except AttributeError:
            raise InfrastructureError("WebShop: reset must be called before anything else.") from None

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot of any episode in this shop; raises InfrastructureError for anything else."""
        if not isinstance(snapshot, Snapshot):
            raise InfrastructureError(f"WebShop: {type(snapshot).__name__} is no snapshot of a shop.")
        self._enter(snapshot)

    def fork(self) -> ShopEngine:
        """An independent copy; it shares only values that never change."""
        copy = ShopEngine(self._catalogue, self._find_goal, self._page_size)
        copy._now, copy._worth = self.snapshot(), self._worth
        return copy

    def digest(self) -> str:
        """Hash of goal, page and step counter."""
        return _hash(f"{self.state_key()} {self.snapshot().steps}")

    def state_key(self) -> str:
        """Hash of goal and page (query, number, product, chosen options)."""
        now = self.snapshot()
        return _hash(repr((now.goal.task_id, now.page)))

    def admissible(self) -> list[str] | None:
        """Sorted clicks; None on the search page, where there is nothing to click."""
        page = self.snapshot().page
        if page.kind == "search":
            return None
        return sorted(f"click[{label}]" for label in self._buttons(page))

    def process_reward(self) -> float:
        """The reward that buying the product of this page with the chosen options pays; 0 where there is none."""
        now = self.snapshot()
        if self._worth is None:
            self._worth = self._reward(now.goal, now.page) if now.page.asin else 0.0
        return self._worth

    def expert_action(self) -> str | None:
        """The next step of a buyer who knows the goal's product; None at the end."""
        now = self.snapshot()
        return next_click(now.page, now.goal, self._catalogue, self._page_size)

    def close(self) -> None:
        """Nothing is held."""

    def _enter(self, moment: Snapshot) -> None:
        self._now, self._worth = moment, None

    def _target(self, verb: str, argument: str) -> Page:
        if verb == "search":
            return pages.search(argument.lower())
        page = self._now.page
        return self._buttons(page).get(argument.lower().strip(), page)

    def _buttons(self, page: Page) -> dict[str, Page]:
        return pages.buttons(page, self._catalogue, self._page_size)

    def _text(self) -> str:
        return pages.text(self._now.page, self._now.goal, self._catalogue, self._page_size)

    def _reward(self, goal: Goal, page: Page) -> float:
        return purchase_reward(
            self._catalogue.products[page.asin],
            [value for _, value in page.options],
            target=self._catalogue.products[goal.asin],
            attributes=goal.attributes,
            options=goal.options,
            price_bound=goal.price_bound,
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
