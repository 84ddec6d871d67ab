"""A world of named places, with snapshots, and a policy that is told by session where to go."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes import END, FakeSampler, LetterCodec, task

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import AlfworldEnvironment
from agentbench_rl.rollout.chains import Rollouts, collect
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, PlaySettings, Row
from agentbench_rl.rollout.replaying import replay_boundary
from agentbench_rl.types import InfrastructureError, Observation, StepResult, Task

#: Where an action, the name of a place, ends the episode: (place, action) to success.
Ends = Mapping[tuple[str, str], bool]


class TreeCodec(LetterCodec):
    """Its responses end with a line feed."""

    end_id = END


@dataclass
class Places:
    """What all episodes share. lost: actions that fail as the machinery does; torn: places without a snapshot.

    step_reward: paid for every step.
    """

    ends: Ends = field(default_factory=dict)
    lost: set[tuple[str, str]] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)
    strange: set[str] = field(default_factory=set)
    step_reward: float = 0.0
    open: int = 0


class Walk:
    """One episode: every action leads to the place of that name."""

    def __init__(self, world: Places) -> None:
        self._world = world
        self._moment: tuple[str, ...] = ()
        self._closed = False
        world.open += 1

    @property
    def place(self) -> str:
        return self._moment[-1]

    def reset(self, task: Task) -> Observation:
        if ("", task.task_id) in self._world.lost:
            raise InfrastructureError("no reset")
        self._moment = (task.task_id,)
        return Observation(self._seen())

    def step(self, action: str) -> StepResult:
        if (self.place, action) in self._world.lost:
            raise InfrastructureError(f"{self.place} to {action}")
        success = self._world.ends.get((self.place, action))
        self._moment = (*self._moment, action)
        return StepResult(self._seen(), self._paid(success), success is not None, bool(success), None)

    def snapshot(self) -> object:
        if self.place in self._world.torn:
            raise InfrastructureError(f"no snapshot of {self.place}")
        return self._moment

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, tuple)
        self._moment = snapshot

    def digest(self) -> str:
        return "/".join(self._moment)

    def state_key(self) -> str:
        return self.place

    def admissible(self) -> list[str] | None:
        return None

    def process_reward(self) -> float | None:
        return None

    def close(self) -> None:
        self._world.open -= not self._closed
        self._closed = True

    def _paid(self, success: bool | None) -> float:
        return self._world.step_reward + float(bool(success))

    def _seen(self) -> str:
        return "a strange place" if self.place in self._world.strange else f"you are in {self.place}"


def settings(max_turns: int = 6, max_context_tokens: int = 2000) -> PlaySettings:
    config = AlfworldEnvironment(name="alfworld", max_turns=max_turns, max_invalid_turns=3)
    return PlaySettings(config, ModelConfig(), 16, max_context_tokens, 1.0, "policy", 0)


class Journey:
    """Plays episodes in a world with a scripted policy; counts the rebuilt boundaries."""

    def __init__(self, script: Callable[[str], str], world: Places | None = None, **limits: int) -> None:
        self.world = world or Places()
        self.rebuilt: list[str] = []
        self.sizes: list[int] = []
        self._script, self._settings = script, settings(**limits)

    def play(self, specs: Sequence[EpisodeSpec]) -> Rollouts:
        self.sizes.append(len(specs))
        sampler = FakeSampler(lambda session, _: self._script(session))
        return collect(
            specs,
            sampler,
            lambda: Walk(self.world),  # type: ignore[arg-type,return-value]
            TreeCodec(),
            self._settings,
            slots=4,
            retries=0,
            max_fault_share=1.0,
            progress=lambda done, total: None,
        )

    def rebuild(self, of: Task, rows: Sequence[Row]) -> Boundary:
        self.rebuilt.append(rows[-1]["turn_id"])
        return replay_boundary(of, rows, Walk(self.world), TreeCodec(), self._settings)  # type: ignore[arg-type]


def tasks(*names: str) -> list[Task]:
    return [task(name) for name in names]


def wander(session: str) -> str:
    """A place that depends on the session alone; every fourth answer ends the episode."""
    number = int.from_bytes(hashlib.sha256(session.encode()).digest()[:4], "big")
    return ("home", "pit", "hall", "hall", "cellar", "attic", "shed", "yard")[number % 8]


class Anywhere(dict[tuple[str, str], bool]):
    """`home` is a success and `pit` a failure, from wherever."""

    def get(self, step: tuple[str, str], default: Any = None) -> Any:
        return {"home": True, "pit": False}.get(step[1], default)
