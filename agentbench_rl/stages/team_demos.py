"""One demonstrated episode of a team: its members say what the workflow makes of the environment's expert action."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from agentbench_rl.config import Experiment
from agentbench_rl.envs.base import Demonstrator, Environment, Suite
from agentbench_rl.rollout.workflows import instructions_of, open_workflow
from agentbench_rl.rollout.workflows.base import ActiveSet, Demonstration, Move
from agentbench_rl.types import AgentRLError, StepResult, Task

Row = dict[str, Any]


def team_episode(suite: Suite, task: Task, experiment: Experiment, episode_id: str) -> list[Row]:
    """Rows of `demos.parquet`, one per member's output; none where the team does not succeed.

    Raises AgentRLError where what the workflow demonstrates is not in its own grammar.
    """
    assert experiment.team is not None
    workflow = open_workflow(experiment.team, experiment.environment)
    instructions = instructions_of(experiment.team, workflow)
    rng = random.Random(episode_id)
    with closing(suite.make()) as environment:
        observation = environment.reset(task).text
        demonstrator = suite.demonstrator(experiment.demos.expert, environment, task, rng.getrandbits(32))
        expert = _Expert(environment, demonstrator, observation)
        memory = workflow.start(observation)
        rows: list[Row] = []
        while expert.steps < experiment.environment.max_turns and (active := workflow.next_set(memory)) is not None:
            said = workflow.demonstrate(memory, active, expert.action, rng)
            if said is None:
                return []
            moves = workflow.moves(active, [(output.text, True) for output in said])
            _check(active, said, moves)
            for member, output in zip(active.members, said, strict=True):
                row = {"system": instructions[member.role], "observation": member.prompt, "action": output.text}
                rows.append(row | {"step": len(rows), "trainable": output.trainable})
            results = expert.execute(moves)
            if (last := next((result for result in results if result is not None and result.done), None)) is not None:
                ids = {"episode_id": episode_id, "task_id": task.task_id, "task_type": task.task_type, "admissible": []}
                return [ids | row for row in rows] if last.success else []
            memory = workflow.commit(memory, active, moves, results)
        return []


class _Expert:
    """The environment's expert; it sees every step, and holds its next action however many events come before that."""

    def __init__(self, environment: Environment, demonstrator: Demonstrator, observation: str) -> None:
        self.steps = 0
        self.action = demonstrator(observation, None)
        self._environment, self._demonstrator = environment, demonstrator

    def execute(self, moves: Sequence[Move]) -> list[StepResult | None]:
        """Execute the moves that are meant for the environment, until one ends the episode."""
        results: list[StepResult | None] = []
        done = False
        for move in moves:
            if not move.to_environment or done:
                results.append(None)
                continue
            result = self._environment.step(move.action)
            self.steps += 1
            results.append(result)
            done = result.done
            if not done:
                self.action = self._demonstrator(result.observation, move.action)
        return results


def _check(active: ActiveSet, said: Sequence[Demonstration], moves: Sequence[Move]) -> None:
    for output, move in zip(said, moves, strict=True):
        if output.trainable and not move.valid:
            raise AgentRLError(
                f"demos: {output.text!r} is demonstrated in a {active.event_type} event and malformed there; the "
                "expert's actions and environment.prompt.action_format do not fit the team's workflow"
            )
