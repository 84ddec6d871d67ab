"""One iteration of a run whose schedule is `reward_swap`: its place in its loop, and what the loop is a function of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentbench_rl.algorithms.reward_swap import LoopCounts, loop_counts
from agentbench_rl.config.schedule import RewardSwap
from agentbench_rl.stages.iteration import Iteration
from agentbench_rl.types import Progress


class LoopIteration(Iteration):
    """An iteration of `reward_swap`; the rounds and the buffer of a loop lie below its first one."""

    @property
    def schedule(self) -> RewardSwap:
        """How long loops are, who collects, and what is drawn."""
        assert isinstance(self.method.schedule, RewardSwap)
        return self.method.schedule

    @property
    def counts(self) -> LoopCounts:
        """Tasks and episodes of a loop."""
        tasks = self.experiment.rollout.tasks_per_iteration
        return loop_counts(self.schedule, tasks, self.method.topology.group_size)

    @property
    def place(self) -> int:
        """Number of the iteration within its loop."""
        return self.number % self.schedule.period

    @property
    def first(self) -> LoopIteration:
        """The first iteration of the loop."""
        return replace(self, number=self.number - self.place)

    @property
    def history(self) -> range:
        """The iterations of the loop before one that begins a loop."""
        return range(max(0, self.number - self.schedule.period), self.number)

    @property
    def shares_critic(self) -> bool:
        """Whether the policy goes on with the critic that the explorer trained."""
        explores = self.schedule.source != "history" and self.place == 0
        return explores and self.method.critic is not None and self.schedule.critic == "shared"

    @property
    def before(self) -> Path:
        """Directory of the checkpoint that the iteration's update begins with."""
        return self.stage("swap") if self.shares_critic else self.start

    @property
    def states(self) -> tuple[str, ...]:
        """What is there beside the policy at the start: nothing, or optimizer and critic."""
        return () if self.start == self.layout.sft else self.method.checkpoint[1:]

    def inputs(self) -> dict[str, Path]:
        """Beside the tasks, what the explorer is a copy of, and what tells its dense rewards if that is a model."""
        inputs = super().inputs() | {name: self.start / name for name in self.states}
        if self.method.needs_dense_model:
            inputs["dense_model"] = self.layout.dense_model / "model"
        return inputs

    def after(self, episodes: int, progress: Progress) -> Progress:
        """Tell of episodes as of those that come after `episodes` others in the iteration."""
        counts = self.counts
        own = counts.outcome_episodes // self.schedule.period
        explored = counts.dense_episodes + counts.buffer_episodes if counts.buffer_tasks else 0
        total = own + (explored if self.place == 0 else 0)
        return lambda done, _: progress(min(episodes + done, total), total)
