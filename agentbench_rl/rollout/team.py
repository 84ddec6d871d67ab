"""One running episode of a team: every transition is an event, the set of responses that it consumes together.

The members of an event see one frozen state and are sampled in one batch; then the environment executes their moves in
the order of the members, and the workflow commits everything to the team's memory at once. Source: SRPO (arXiv
2609.08452, section 3.1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from agentbench_rl.envs.base import Environment
from agentbench_rl.policies.base import Completion, SamplingRequest
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.episode import EpisodeSpec, PlaySettings, Row, request_seed
from agentbench_rl.rollout.rows import cost_of, dense_change, prompt_fits, response_columns, summary_of
from agentbench_rl.rollout.workflows import instructions_of, policy_of
from agentbench_rl.rollout.workflows.base import ActiveSet, Move
from agentbench_rl.types import (
    AGENT,
    TEAM_ROUND,
    AgentRLError,
    Ending,
    InfrastructureError,
    StepResult,
)


class TeamEpisode:
    """An episode of a team in play; `requests` and `advance` alternate until it is `over`.

    rows: one per member of every event. `environment.max_turns` limits the environment's steps, `max_invalid_turns`
    consecutive events with a malformed or refused response.
    """

    def __init__(self, spec: EpisodeSpec, environment: Environment, codec: ChatCodec, settings: PlaySettings) -> None:
        assert settings.team is not None
        assert settings.workflow is not None
        self.spec = spec
        self.rows: list[Row] = []
        self.ending: Ending | None = None
        self._events: list[list[Row]] = []
        self._environment = environment
        self._codec = codec
        self._settings = settings
        self._team, self._workflow = settings.team, settings.workflow
        self._instructions = instructions_of(self._team, self._workflow)
        self._active = ActiveSet("", 0, ())
        self._prompts: list[list[int]] = []
        self._sessions: list[str] = []
        self._steps = 0
        self._invalid_run = 0
        self._progress: float | None = None
        self._memory: Any = None
        self._state_key = ""
        try:
            observation = environment.reset(spec.task).text
            self._progress = environment.process_reward()
            self._memory = self._workflow.start(observation)
            self._state_key = self._key()
        except InfrastructureError as error:
            self.ending = error.ending

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.ending is not None

    def requests(self) -> list[SamplingRequest]:
        """Return the requests of the next event's members; none (with `ending` set) when nobody acts or fits.

        Raises AgentRLError when not even the first prompts fit, or the workflow names no set that can act.
        """
        self._sessions = []
        active = self._workflow.next_set(self._memory)
        if active is None and self._events:
            self._end(Ending.FAILURE)
            return []
        self._active = self._checked(active)
        self._prompts = [
            self._codec.open(
                [
                    {"role": "system", "content": self._instructions[member.role]},
                    {"role": "user", "content": member.prompt},
                ]
            )
            for member in self._active.members
        ]
        longest = max(map(len, self._prompts))
        first = not self._events
        if not prompt_fits(self.spec.task.task_id, longest, self._settings.max_prompt_tokens, first=first):
            self._end(Ending.TRUNCATED_TOKENS)
            return []
        self._sessions = [f"{self._event_id}.{index}" for index in range(len(self._prompts))]
        return [
            SamplingRequest(
                session=session,
                prompt_ids=prompt,
                max_tokens=self._settings.max_response_tokens,
                seed=request_seed(self._event_id, index),
                temperature=self._settings.temperature,
                policy=policy_of(self._team, member.role),
            )
            for index, (session, prompt, member) in enumerate(
                zip(self._sessions, self._prompts, self._active.members, strict=True)
            )
        ]

    def idle_sessions(self) -> list[str]:
        """Sessions of the sampler that it does not go on with: every prompt is a new one."""
        return self._sessions

    def advance(self, completions: Sequence[Completion]) -> None:
        """Commit an event: append its rows, execute its moves, and set `ending` when the episode is over."""
        texts = [(self._codec.decode(completion.token_ids), completion.finished) for completion in completions]
        moves = self._workflow.moves(self._active, texts)
        if len(moves) != len(texts):
            raise AgentRLError(f"the team's workflow reads {len(moves)} moves of the outputs of {len(texts)} members")
        members = zip(completions, moves, self._prompts, strict=True)
        event = [self._row(index, *member) for index, member in enumerate(members)]
        self._events.append(event)
        self.rows += event
        try:
            results = self._execute(event, moves)
            self._memory = self._workflow.commit(self._memory, self._active, moves, results)
            self._state_key = self._key()
        except InfrastructureError as error:
            for row in event:
                row |= {"reward": None, "process_reward": None}
            self._end(error.ending)
            return
        for row in event:
            row["next_state_key"] = self._state_key
        self._invalid_run = 0 if all(row["valid"] for row in event) else self._invalid_run + 1
        last = next((result for result in results if result is not None and result.done), None)
        if last is not None:
            self._end(Ending.SUCCESS if last.success else Ending.FAILURE)
        elif self._invalid_run >= self._settings.environment.max_invalid_turns:
            self._end(Ending.PARSE_ERROR)
        elif self._steps >= self._settings.environment.max_turns:
            self._end(Ending.TRUNCATED_TURNS)

    def cost(self) -> dict[str, int]:
        """Executed moves, and tokens and tool calls of all members, whatever the ending."""
        return cost_of(self.rows, self._steps)

    def summary(self) -> Row:
        """Return the row of `episodes.parquet`; its length is the number of events."""
        assert self.ending is not None
        leaf = self._events[-1][0]["turn_id"] if self._events else self.spec.episode_id
        return summary_of(self.spec.episode_id, self.spec.columns, self.ending, leaf, self._events)

    def close(self) -> None:
        """Release the environment."""
        self._environment.close()

    @property
    def _event_id(self) -> str:
        return f"{self.spec.episode_id}.{len(self._events)}"

    def _key(self) -> str:
        if repr(self._memory) == object.__repr__(self._memory):
            raise AgentRLError(
                f"the memory of the team's workflow, a {type(self._memory).__name__}, has no repr that tells what it "
                "holds, and equal memories must be equal states: make it a frozen dataclass"
            )
        return _hash(f"{self._environment.state_key()} {self._memory!r}")

    def _checked(self, active: ActiveSet | None) -> ActiveSet:
        """Refuse what a workflow must not name."""
        if active is None or not active.members:
            raise AgentRLError(f"task {self.spec.task.task_id}: the team's workflow names an empty set to act")
        if len(active.members) > self._workflow.largest_set:
            raise AgentRLError(
                f"the team's workflow names {len(active.members)} members of one {active.event_type} event, and its "
                f"largest_set is {self._workflow.largest_set}"
            )
        for member in active.members:
            if member.role not in self._instructions:
                raise AgentRLError(f"the team's workflow has no instructions for the role {member.role!r}")
        return active

    def _execute(self, event: Sequence[Row], moves: Sequence[Move]) -> list[StepResult | None]:
        """Execute the moves that are meant for the environment until one ends the episode; all rows get the reward."""
        results: list[StepResult | None] = []
        executed: list[StepResult] = []
        for row, move in zip(event, moves, strict=True):
            if not move.to_environment or (executed and executed[-1].done):
                results.append(None)
                continue
            self._steps += 1
            result = self._environment.step(move.action)
            row |= {"observation": result.observation, "tool_calls": result.tool_calls}
            row["valid"] = move.valid and result.valid
            results.append(result)
            executed.append(result)
        change = self._dense(executed[-1].process_reward if executed else self._progress)
        reward = sum(result.reward for result in executed)
        for row in event:
            row |= {"reward": float(reward), "process_reward": change}
        return results

    def _dense(self, progress: float | None) -> float | None:
        if progress is None or self._progress is None:
            return None
        before, self._progress = self._progress, progress
        return dense_change(before, progress)

    def _row(self, index: int, completion: Completion, move: Move, prompt: list[int]) -> Row:
        member, step = self._active.members[index], len(self._events)
        return {
            "turn_id": f"{self._event_id}.{index}",
            "parent_id": self._events[-1][0]["turn_id"] if self._events else None,
            **self.spec.columns,
            "branch": self.spec.branch,
            "step": step,
            "event_id": self._event_id,
            "event_type": self._active.event_type,
            "event_size": len(self._active.members),
            "member": index,
            "policy": policy_of(self._team, member.role),
            "policy_version": self._settings.policy_version,
            "prompt_ids": prompt,
            "extends_parent": False,
            **response_columns(completion, self._codec, self._settings.environment.prompt.protocol_prefix),
            "state_key": self._state_key,
            "next_state_key": self._state_key,
            "anchor_key": _hash(member.prompt),
            "action": move.action,
            "observation": "",
            "tool_calls": 0,
            "valid": move.valid,
            "done": False,
            "ending": None,
            AGENT: member.agent,
            TEAM_ROUND: self._active.round,
        }

    def _end(self, ending: Ending) -> None:
        self.ending = ending
        for row in self._events[-1] if self._events else ():
            row |= {"done": True, "ending": str(ending)}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
