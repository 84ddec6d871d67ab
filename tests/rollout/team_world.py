"""Scripted teams: a workflow that follows a plan, a sampler that says what it is told, and real environments."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes import END, FakeEnvironment, LetterCodec, World, specs

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import AlfworldEnvironment, EnvironmentConfig
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.envs import open_source
from agentbench_rl.envs.base import Environment
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.rollout.chains import Rollouts, collect
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings, specs_of_groups
from agentbench_rl.rollout.workflows import open_workflow
from agentbench_rl.rollout.workflows.base import ActiveSet, Demonstration, Member, Move, Workflow
from agentbench_rl.types import StepResult

#: What a member says, by its event in the episode, its number there, and what it sees.
Script = Callable[[int, int, str], str]


@dataclass(frozen=True, slots=True)
class Said:
    """Memory of a plan: how many events are over, and everything that was committed."""

    events: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A workflow of given sets: names that begin with `q` act in the environment, the others only speak.

    The last set's members act in the environment too. `finished` outputs are well-formed.
    """

    sets: Sequence[Sequence[str]]
    instructions: dict[str, str] = field(default_factory=lambda: {"one": "Speak."})

    @property
    def largest_set(self) -> int:
        return max(map(len, self.sets))

    def start(self, observation: str) -> Said:
        return Said(0, (observation,))

    def next_set(self, memory: Said) -> ActiveSet | None:
        if memory.events == len(self.sets):
            return None
        names = self.sets[memory.events]
        members = tuple(Member(name, "one", "\n".join([*memory.texts, f"as {name}"])) for name in names)
        return ActiveSet((*names, "")[0].rstrip("0123456789"), memory.events, members)

    def moves(self, active: ActiveSet, outputs: Sequence[tuple[str, bool]]) -> tuple[Move, ...]:
        last = active.round == len(self.sets) - 1
        said = zip(active.members, outputs, strict=True)
        return tuple(
            Move(text, finished, to_environment=finished and (last or member.agent.startswith("q")))
            for member, (text, finished) in said
        )

    def commit(
        self, memory: Said, active: ActiveSet, moves: Sequence[Move], results: Sequence[StepResult | None]
    ) -> Said:
        found = [result.observation for result in results if result is not None]
        return Said(memory.events + 1, (*memory.texts, *(move.action for move in moves if move.valid), *found))

    def demonstrate(
        self, memory: Said, active: ActiveSet, expert: str | None, rng: random.Random
    ) -> tuple[Demonstration, ...] | None:
        return None


class TeamSampler:
    """Answers as the script says; a response that ends in `…` is cut off. Remembers batches, prompts and releases."""

    entropies_are_lower_bounds = False

    def __init__(self, script: Script) -> None:
        self._script = script
        self.batches: list[list[SamplingRequest]] = []
        self.prompts: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.held: set[str] = set()

    def load(self, policy: Path, version: int) -> None:
        """Nothing to load."""

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        self.batches.append(list(requests))
        completions = []
        for request in requests:
            prompt = LetterCodec().decode(request.prompt_ids)
            _, event, member = request.session.rsplit(".", 2)
            text = self._script(int(event), int(member), prompt)
            self.prompts[request.session], self.texts[request.session] = prompt, text
            self.held.add(request.session)
            ids = [*map(ord, text.removesuffix("…")), *([] if text.endswith("…") else [END])]
            completions.append(Completion(ids, [-0.5] * len(ids), [0.25] * len(ids), not text.endswith("…")))
        return completions

    def release(self, session: str) -> None:
        self.held.discard(session)

    def close(self) -> None:
        """Nothing is held."""


def play_team(
    script: Script,
    workflow: Workflow[Any],
    make_environment: Callable[[], Environment],
    environment: EnvironmentConfig,
    episodes: Sequence[EpisodeSpec],
    *,
    team: TeamConfig | None = None,
    slots: int = 12,
    retries: int = 0,
    max_context_tokens: int = 4000,
) -> tuple[Rollouts, TeamSampler]:
    """Play episodes by a workflow under the production scheduler."""
    sampler = TeamSampler(script)
    team = team or TeamConfig(workflow="propose_act")
    settings = PlaySettings(
        environment, ModelConfig(), 16, max_context_tokens, 1.0, "policy", 4, team=team, workflow=workflow
    )
    rollouts = collect(
        episodes,
        sampler,
        make_environment,
        LetterCodec(),  # type: ignore[arg-type]
        settings,
        slots=slots,
        retries=retries,
        max_fault_share=1.0,
        progress=lambda done, total: None,
    )
    return rollouts, sampler


def play_plan(
    script: Script,
    sets: Sequence[Sequence[str]],
    *names: str,
    world: World | None = None,
    largest: int | None = None,
    limits: dict[str, int] | None = None,
    **settings: Any,
) -> tuple[Rollouts, TeamSampler]:
    """Play a plan in the scripted environment, one episode of every task (or of `a`)."""
    config = AlfworldEnvironment(name="alfworld", **{"max_turns": 50, "max_invalid_turns": 3} | (limits or {}))
    shared = world or World()
    plan = Plan(sets)
    return play_team(script, plan, lambda: FakeEnvironment(shared), config, specs(*(names or ("a",))), **settings)


def play_workflow(
    script: Script, team: TeamConfig, environment: EnvironmentConfig, tasks: int = 1, **settings: Any
) -> tuple[Rollouts, TeamSampler]:
    """Play a shipped workflow in its real environment."""
    suite = open_source(environment, {"train": tasks})
    episodes = specs_of_groups(suite.tasks("train"), 1, "s0.i0")
    return play_team(script, open_workflow(team, environment), suite.make, environment, episodes, team=team, **settings)


def ledger(rollouts: Rollouts) -> list[int]:
    """Sizes of the events in their order; every event has all its rows, which stand together."""
    sizes = []
    rows = list(rollouts.turns)
    while rows:
        size = rows[0]["event_size"]
        event, rows = rows[:size], rows[size:]
        assert [row["member"] for row in event] == list(range(size))
        shared = ("event_id", "event_size", "event_type", "step", "parent_id", "state_key", "next_state_key", "reward")
        assert len({tuple(row[name] for name in shared) for row in event}) == 1
        sizes.append(size)
    return sizes


def say_once(event: int, member: int, prompt: str) -> str:
    """Words that no other member says."""
    return f"word{event}x{member}."
