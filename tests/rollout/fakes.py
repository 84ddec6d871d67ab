"""A scripted environment, a scripted sampler and a codec of characters, to drive the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import AlfworldEnvironment
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.rollout.chains import Player, Rollouts, collect
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings, specs_of_groups
from agentbench_rl.types import InfrastructureError, Observation, Progress, StepResult, Task

END = 10


@dataclass
class World:
    """What all instances of the environment share: `faults` counts down, one fault per visit of a place."""

    faults: dict[str, int] = field(default_factory=dict)
    opened: int = 0
    closed: int = 0

    def visit(self, place: str) -> None:
        if self.faults.get(place, 0) > 0:
            self.faults[place] -= 1
            raise InfrastructureError(f"fault in {place}")


class FakeEnvironment:
    """`win` succeeds, `lose` fails, `break` is a fault, `+n` makes the progress n / 10; others are counted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = 0
        self._progress: float | None = 0.5
        self._closed = False
        world.opened += 1

    def reset(self, task: Task) -> Observation:
        self._task = task.task_id
        self._world.visit(f"reset {self._task}")
        return Observation(f"{self._task}: start")

    def step(self, action: str) -> StepResult:
        self._world.visit(f"step {self._task} {self._steps}")
        if action == "break":
            raise InfrastructureError(f"fault of {self._task}")
        self._steps += 1
        if action.startswith("+"):
            self._progress = None if action == "+none" else int(action[1:]) / 10
        done = action in ("win", "lose")
        won = action == "win"
        return StepResult(f"{self._task}: {self._steps}", float(won), done, won, self._progress, tool_calls=1)

    def admissible(self) -> list[str]:
        self._world.visit(f"admissible {self._task} {self._steps}")
        return ["win", "lose"]

    def process_reward(self) -> float | None:
        return self._progress

    def state_key(self) -> str:
        self._world.visit(f"state_key {self._task} {self._steps}")
        return f"{self._task}/{self._steps}"

    def digest(self) -> str:
        return f"{self._task}/{self._steps}"

    def snapshot(self) -> object:
        self._world.visit(f"snapshot {self._task} {self._steps}")
        return self._task, self._steps, self._progress

    def restore(self, snapshot: Any) -> None:
        self._task, self._steps, self._progress = snapshot
        self._world.visit(f"restore {self._task} {self._steps}")

    def close(self) -> None:
        self._world.closed += not self._closed
        self._closed = True


class LetterCodec:
    """One id per character; a turn ends with a line feed."""

    def open(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [1, *(ord(c) for message in messages for c in message["content"])]

    def follow(self, user_text: str, *, finished: bool) -> list[int]:
        return [*([] if finished else [END]), 1, *map(ord, user_text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids)).strip()


class FakeSampler:
    """Answers from `script(session, own turn)`; a response that ends in `…` is cut off. Remembers batches and releases.

    entropy: of every token of a response, told by its session and turn.
    """

    entropies_are_lower_bounds = False

    def __init__(
        self, script: Callable[[str, int], str], entropy: Callable[[str, int], float] = lambda session, step: 0.25
    ) -> None:
        self._script = script
        self._entropy = entropy
        self._steps: dict[str, int] = {}
        self.batches: list[list[str]] = []
        self.requests: list[SamplingRequest] = []
        self.released: list[str] = []

    def load(self, policy: Path, version: int) -> None:
        """Nothing to load."""

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        self.batches.append([request.session for request in requests])
        self.requests += requests
        return [self._answer(request) for request in requests]

    def release(self, session: str) -> None:
        self.released.append(session)
        self._steps.pop(session, None)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: SamplingRequest) -> Completion:
        step = self._steps.get(request.session, 0)
        self._steps[request.session] = step + 1
        text = self._script(request.session, step)
        finished = not text.endswith("…")
        ids = [*map(ord, text.removesuffix("…")), *([END] if finished else [])]
        return Completion(ids, [-0.5] * len(ids), [self._entropy(request.session, step)] * len(ids), finished)


def task(name: str) -> Task:
    return Task(name, "errand", "train", name * 2)


def specs(*names: str, group_size: int = 1) -> list[EpisodeSpec]:
    return specs_of_groups([task(name) for name in names], group_size, "s0.i0")


def play(
    script: Callable[[str, int], str],
    episodes: Sequence[EpisodeSpec],
    **settings: Any,
) -> tuple[Rollouts, FakeSampler]:
    """Play episodes whose sessions are passed to the script."""
    sampler = FakeSampler(script)
    return player(sampler, **settings)(episodes, lambda done, total: None), sampler


def player(
    sampler: FakeSampler,
    *,
    world: World | None = None,
    slots: int = 2,
    retries: int = 0,
    max_fault_share: float = 1.0,
    max_context_tokens: int = 500,
    earlier: dict[str, int] | None = None,
    **environment: Any,
) -> Player:
    """What plays batches of episodes in one world."""
    limits: dict[str, Any] = {"max_turns": 5, "max_invalid_turns": 3} | environment
    config = AlfworldEnvironment(name="alfworld", **limits)
    settings = PlaySettings(config, ModelConfig(), 16, max_context_tokens, 1.0, "policy", 4)
    shared = world or World()

    def play_batch(episodes: Sequence[EpisodeSpec], progress: Progress) -> Rollouts:
        return collect(
            episodes,
            sampler,
            lambda: FakeEnvironment(shared),
            LetterCodec(),
            settings,
            slots=slots,
            retries=retries,
            max_fault_share=max_fault_share,
            progress=progress,
            earlier=earlier,
        )

    return play_batch
