"""Episodes of coins, played by the real scheduler: a tabular policy, one chance per step, and what a path pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import AlfworldEnvironment, PromptConfig
from agentbench_rl.config.topology import Branch
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.rollout.branching import branch
from agentbench_rl.rollout.chains import Rollouts, collect
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings, roots_of_trees, specs_of_groups
from agentbench_rl.types import Observation, Progress, StepResult, Task, silent

#: Names the run, and so decides all random numbers.
_RUN = "s2.i0"
_START = ord("s")
_PROMPT = PromptConfig(system="", first="{observation}", next="{observation}", window="{observation}")


@dataclass(frozen=True)
class Coins:
    """odds: chance of a 1 at every step. pays: of the whole path. entropy: what the sampler says of the path so far."""

    odds: Sequence[float]
    pays: Callable[[str], float]
    entropy: Callable[[str], float]

    def trees(self, count: int, settings: Branch, threshold: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rollouts and episodes of so many tasks' trees."""
        roots = roots_of_trees(_tasks(count), settings.trees, _RUN)
        return _frames(branch(roots, self._play, settings, threshold, silent))

    def groups(self, count: int, size: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rollouts and episodes of so many groups of independent episodes."""
        return _frames(self._play(specs_of_groups(_tasks(count), size, _RUN), silent))

    def _play(self, specs: Sequence[EpisodeSpec], progress: Progress) -> Rollouts:
        environment = AlfworldEnvironment(name="alfworld", max_turns=len(self.odds) + 1, prompt=_PROMPT)
        return collect(
            specs,
            _TabularSampler(self),
            lambda: _CoinEnvironment(self),
            _Characters(),
            PlaySettings(environment, ModelConfig(), 1, 1000, 1.0, "policy", 0),
            slots=64,
            retries=0,
            max_fault_share=0.0,
            progress=progress,
        )


class _CoinEnvironment:
    """Every action is the next bit of the path."""

    def __init__(self, coins: Coins) -> None:
        self._coins = coins
        self._path = ""

    def reset(self, task: Task) -> Observation:
        self._path = ""
        return Observation("s")

    def step(self, action: str) -> StepResult:
        self._path += action
        done = len(self._path) == len(self._coins.odds)
        paid = self._coins.pays(self._path) if done else 0.0
        return StepResult("s" + self._path, paid, done, paid > 0.0)

    def snapshot(self) -> str:
        return self._path

    def restore(self, snapshot: object) -> None:
        self._path = str(snapshot)

    def digest(self) -> str:
        return self._path

    def state_key(self) -> str:
        return self._path

    def admissible(self) -> None:
        return None

    def process_reward(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class _Characters:
    """One id per character."""

    def open(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(letter) for message in messages for letter in message["content"]]

    def follow(self, user_text: str, *, finished: bool) -> list[int]:
        return [ord(letter) for letter in user_text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class _TabularSampler:
    """Draws a bit by the chance of the step; a request's seed is its random number."""

    def __init__(self, coins: Coins) -> None:
        self._coins = coins

    def load(self, policy: Path, version: int) -> None:
        """Nothing to load."""

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        return [self._draw(request) for request in requests]

    def release(self, session: str) -> None:
        """Nothing is cached."""

    def close(self) -> None:
        """Nothing is held."""

    def _draw(self, request: SamplingRequest) -> Completion:
        ids = list(request.prompt_ids)
        path = "".join(map(chr, ids[len(ids) - ids[::-1].index(_START) :]))
        chance = self._coins.odds[len(path)]
        one = request.seed / 2**63 < chance
        logprob = math.log(chance if one else 1.0 - chance)
        return Completion([ord("1" if one else "0")], [logprob], [self._coins.entropy(path)], True)


def _tasks(count: int) -> list[Task]:
    return [Task(f"{number}", "coins", "train", f"{number}") for number in range(count)]


def _frames(rollouts: Rollouts) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.DataFrame(rollouts.turns), pd.DataFrame(rollouts.episodes)
