"""One running episode: alternates prompts and environment steps and keeps its rows of the file contract."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.config.team import TeamConfig
from agentbench_rl.envs.base import Environment
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.policies.context import EpisodeContext, Prompt, parse_action
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.rows import cost_of, dense_change, prompt_fits, response_columns, summary_of
from agentbench_rl.rollout.workflows.base import Workflow
from agentbench_rl.types import GREEDY, INFRASTRUCTURE_ENDINGS, Ending, InfrastructureError, Task

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A moment before a response, from which any number of continuations can be played.

    rows: the turns that led here. context: copied by who goes on from here, never changed.
    """

    rows: tuple[Row, ...]
    observation: str
    state_key: str
    digest: str
    progress: float | None
    invalid_run: int
    context: EpisodeContext
    snapshot: object

    @property
    def step(self) -> int:
        """Turns before this moment."""
        return len(self.rows)

    @property
    def parent_id(self) -> str | None:
        """The turn that led here."""
        return self.rows[-1]["turn_id"] if self.rows else None


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Which episode to play; `group_id` and `tree_id` are derived from (seed, iteration, task, replica).

    greedy: played at temperature 0, as a baseline of its group; None where the topology has no such episodes.
    branch: 0, or the number of this fresh continuation in its tree, which begins at `origin`. turns: it is left after
    so many turns of its own. forkable: it keeps its boundaries (of one with `turns` only the last, where it is left),
    and its environment, until it is closed.
    """

    task: Task
    group_id: str
    tree_id: str
    greedy: bool | None = None
    branch: int = 0
    origin: Boundary | None = None
    turns: int | None = None
    forkable: bool = False

    @property
    def episode_id(self) -> str:
        """Tree and branch: a branch has one leaf."""
        return f"{self.tree_id}.b{self.branch}"

    @property
    def columns(self) -> Row:
        """What all rows of the episode say of it."""
        ids = {"task_id": self.task.task_id, "task_type": self.task.task_type}
        greedy = {} if self.greedy is None else {GREEDY: self.greedy}
        return {**ids, "group_id": self.group_id, "tree_id": self.tree_id, **greedy}


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """Limits and formats of an episode, and the team that plays it, with its workflow, in place of one agent."""

    environment: EnvironmentConfig
    model: ModelConfig
    max_response_tokens: int
    max_context_tokens: int
    temperature: float
    policy: str
    policy_version: int
    team: TeamConfig | None = None
    workflow: Workflow[Any] | None = None

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt that leaves room for a response."""
        return self.max_context_tokens - self.max_response_tokens


class RunningEpisode:
    """An episode in play; `requests` and `advance` alternate until it is `over`.

    rows: its own turns, those before its origin excluded. boundaries: the moments before its own turns, or the one that
    it is left at, where the spec asks for them and a snapshot is possible. entropies: of every own turn, one per token.
    """

    def __init__(self, spec: EpisodeSpec, environment: Environment, codec: ChatCodec, settings: PlaySettings) -> None:
        self.spec = spec
        self.rows: list[Row] = []
        self.boundaries: list[Boundary] = []
        self.entropies: list[list[float]] = []
        self.ending: Ending | None = None
        self._before: tuple[Row, ...] = spec.origin.rows if spec.origin else ()
        self._environment = environment
        self._codec = codec
        self._settings = settings
        self._context = EpisodeContext(codec, settings.environment.prompt, settings.model)
        self._prompt: Prompt | None = None
        self._invalid_run = 0
        self._observation = ""
        self._state_key = ""
        self._progress: float | None = None
        try:
            if spec.origin is None:
                self._start(spec.task)
            else:
                self._continue(spec.origin)
        except InfrastructureError as error:
            self.ending = error.ending
        self._keep_last_boundary()

    @property
    def over(self) -> bool:
        """Whether it has ended, or has played the turns that were asked for."""
        return self.ending is not None or len(self.rows) == self.spec.turns

    def requests(self) -> list[SamplingRequest]:
        """Return the next sampling request, or none (with `ending` set) when the context is full or at a fault.

        Raises AgentRLError when not even the first prompt fits: such an episode would have nothing to train on.
        """
        if self.spec.forkable and self.spec.turns is None:
            self._keep_boundary()
        try:
            admissible = self._environment.admissible() if "{admissible}" in self._templates() else None
        except InfrastructureError as error:
            self._end(error.ending)
            return []
        self._prompt = self._context.prompt(self._observation, admissible)
        if not prompt_fits(
            self.spec.task.task_id, len(self._prompt.whole_ids), self._settings.max_prompt_tokens, first=not self.step
        ):
            self._end(Ending.TRUNCATED_TOKENS)
            return []
        request = SamplingRequest(
            session=self.spec.episode_id,
            prompt_ids=self._prompt.whole_ids,
            max_tokens=self._settings.max_response_tokens,
            seed=request_seed(self.spec.episode_id, self.step),
            temperature=0.0 if self.spec.greedy else self._settings.temperature,
            shared_prompt=self._shared_prompt(),
        )
        return [request]

    def idle_sessions(self) -> list[str]:
        """Sessions of the sampler that it does not go on with: its own, once it is over."""
        return [self.spec.episode_id] if self.over else []

    @property
    def step(self) -> int:
        """Turns since the start of the task."""
        return len(self._before) + len(self.rows)

    def boundary(self) -> Boundary:
        """The moment before the next response, as a value; raises InfrastructureError where there is no snapshot."""
        return Boundary(
            rows=(*self._before, *self.rows),
            observation=self._observation,
            state_key=self._state_key,
            digest=self._environment.digest(),
            progress=self._progress,
            invalid_run=self._invalid_run,
            context=self._context.copy(),
            snapshot=self._environment.snapshot(),
        )

    def _keep_boundary(self) -> None:
        # An environment may have states that no snapshot takes back; the episode itself goes on there.
        with suppress(InfrastructureError):
            self.boundaries.append(self.boundary())

    def _keep_last_boundary(self) -> None:
        if self.spec.forkable and self.ending is None and self.over:
            self._keep_boundary()

    def advance(self, completions: Sequence[Completion]) -> None:
        """Execute the sampled response, append its row, and set `ending` when the episode is over."""
        (completion,) = completions
        text = self._codec.decode(completion.token_ids)
        action, valid = parse_action(text, completion.finished, self._settings.environment.prompt.action_format)
        self._context.respond(completion.token_ids, completion.finished, action)
        row = self._row(completion, action, valid)
        self.rows.append(row)
        self.entropies.append(completion.entropies)
        try:
            result = self._environment.step(action)
            self._state_key = row["next_state_key"] = self._environment.state_key()
        except InfrastructureError as error:
            row |= {"reward": None, "process_reward": None, "next_state_key": row["state_key"], "observation": ""}
            self._end(error.ending)
            return
        valid = valid and result.valid
        row |= {"observation": result.observation, "reward": result.reward, "tool_calls": result.tool_calls}
        row["valid"] = valid
        row["process_reward"] = self._dense(result.process_reward)
        self._observation = result.observation
        self._invalid_run = 0 if valid else self._invalid_run + 1
        if result.done:
            self._end(Ending.SUCCESS if result.success else Ending.FAILURE)
        elif self._invalid_run >= self._settings.environment.max_invalid_turns:
            self._end(Ending.PARSE_ERROR)
        elif self.step >= self._settings.environment.max_turns:
            self._end(Ending.TRUNCATED_TURNS)
        self._keep_last_boundary()

    def cost(self) -> dict[str, int]:
        """Environment steps, sampled tokens, prompt tokens and tool calls of its own turns, whatever the ending.

        Of trees also the forks and the snapshots.
        """
        trees = {"forks": int(self.spec.origin is not None), "snapshots": len(self.boundaries)}
        return cost_of(self.rows, len(self.rows)) | {name: count for name, count in trees.items() if count}

    def summary(self) -> Row:
        """Return the row of `episodes.parquet`, of the whole path; an infrastructure ending carries no reward.

        An episode that a fault ended before its first own turn has no leaf among the turns: its own id stands there.
        """
        assert self.ending is not None
        faulty = self.ending in INFRASTRUCTURE_ENDINGS
        path = [*self._before, *self.rows]
        leaf = path[-1]["turn_id"] if path and (self.rows or not faulty) else self.spec.episode_id
        return summary_of(self.spec.episode_id, self.spec.columns, self.ending, leaf, [[row] for row in path])

    def close(self) -> None:
        """Release the environment."""
        self._environment.close()

    def _start(self, task: Task) -> None:
        self._observation = self._environment.reset(task).text
        self._progress = self._environment.process_reward()
        self._state_key = self._environment.state_key()

    def _continue(self, origin: Boundary) -> None:
        """Go on from another episode's boundary; raises InfrastructureError where the state is not the same."""
        self._environment.restore(origin.snapshot)
        if self._environment.digest() != origin.digest:
            raise InfrastructureError(
                f"{self.spec.episode_id}: a restored snapshot differs from the state it was taken of"
            )
        self._observation, self._state_key = origin.observation, origin.state_key
        self._progress, self._invalid_run = origin.progress, origin.invalid_run
        self._context = origin.context.copy()

    def _templates(self) -> str:
        prompt = self._settings.environment.prompt
        return prompt.first + prompt.next + prompt.window

    def _shared_prompt(self) -> str | None:
        """Continuations of one boundary begin with the same prompt."""
        origin = self.spec.origin
        return f"{self.spec.tree_id}:{origin.parent_id}" if origin is not None and not self.rows else None

    def _row(self, completion: Completion, action: str, valid: bool) -> Row:
        assert self._prompt is not None
        turn_id = f"{self.spec.episode_id}.{self.step}"
        before = self.rows or self._before
        return {
            "turn_id": turn_id,
            "parent_id": before[-1]["turn_id"] if before else None,
            **self.spec.columns,
            "branch": self.spec.branch,
            "step": self.step,
            "event_id": turn_id,
            "event_type": "act",
            "event_size": 1,
            "member": 0,
            "policy": self._settings.policy,
            "policy_version": self._settings.policy_version,
            "prompt_ids": self._prompt.added_ids,
            "extends_parent": self._prompt.extends_parent,
            **response_columns(completion, self._codec, self._settings.environment.prompt.protocol_prefix),
            "state_key": self._state_key,
            "anchor_key": hashlib.sha256(self._observation.encode()).hexdigest()[:32],
            "action": action,
            "tool_calls": 0,
            "valid": valid,
            "done": False,
            "ending": None,
        }

    def _dense(self, progress: float | None) -> float | None:
        if progress is None or self._progress is None:
            return None
        before, self._progress = self._progress, progress
        return dense_change(before, progress)

    def _end(self, ending: Ending) -> None:
        self.ending = ending
        if self.rows:
            self.rows[-1] |= {"done": True, "ending": str(ending)}


def request_seed(episode_id: str, step: int) -> int:
    """63-bit seed of a request, derived from the episode's id and the step alone."""
    digest = hashlib.blake2b(f"{episode_id}.{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def specs_of_groups(
    tasks: Sequence[Task], group_size: int, prefix: str, *, greedy_baseline: bool = False
) -> list[EpisodeSpec]:
    """Return the episodes of groups of `group_size` replicas per task, in group order; `prefix` names the run step.

    greedy_baseline: one more episode per group, its last, is played greedily.
    """
    specs = []
    for task in tasks:
        group = f"{prefix}.{task.task_id}"
        greedy = False if greedy_baseline else None
        specs += [EpisodeSpec(task, group, f"{group}.t{replica}", greedy) for replica in range(group_size)]
        if greedy_baseline:
            specs.append(EpisodeSpec(task, group, f"{group}.greedy", greedy=True))
    return specs


def roots_of_trees(tasks: Sequence[Task], trees: int, prefix: str) -> list[EpisodeSpec]:
    """Return the backbones of `trees` trees per task, in the order of the tasks; `prefix` names the run step."""
    return [replace(spec, forkable=True) for spec in specs_of_groups(tasks, trees, prefix)]
