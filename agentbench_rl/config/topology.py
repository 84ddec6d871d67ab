"""Settings of the topologies (a union by `kind`): where the policy is sampled."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.settings import Above0, AtLeast0, Positive, Settings, Share

Several = Annotated[int, Field(ge=2)]


class ResampleConfig(Settings):
    """Dynamic sampling: groups whose returns are all equal are dropped, and further tasks are played in their place.

    exhausted: after `max_tries` rounds the last round is kept as it is, or the run stops. trim: keep no surplus.
    """

    max_tries: Positive = 10
    exhausted: Literal["keep", "raise"] = "keep"
    trim: bool = True


class Chains(Settings):
    """Groups of independent episodes of one task.

    greedy_baseline: one more episode per group is played greedily, as a baseline that is not trained on.
    """

    kind: Literal["chains"] = "chains"
    group_size: Positive = 8
    resample: ResampleConfig | None = None
    greedy_baseline: bool = False


class Branch(Settings):
    """Trees of a backbone, played to its end, and of fresh continuations from chosen boundaries of it.

    trees: per task. points: branch points of a tree; what is no whole number is the mean over trees. siblings: events
    compared at a branch point, the backbone's own included. spacing: sampled tokens between two points. select: the
    boundaries of highest entropy (`top_m`), of lowest, at random, equally spaced, or `every` one (`points` and
    `spacing` mean nothing then); `online_threshold` takes the first ones whose entropy reaches a threshold that is
    fixed before the tree is played: `first_threshold` (nats), and in later iterations the quantile of the backbones'
    entropies of the iteration before that would have given `points`.
    """

    kind: Literal["branch"]
    trees: Positive = 1
    points: Above0 = 4.0
    siblings: Several = 4
    spacing: Annotated[int, Field(ge=0)] = 64
    select: Literal["top_m", "online_threshold", "lowest", "random", "equal", "every"] = "top_m"
    first_threshold: AtLeast0 = 0.5

    @property
    def group_size(self) -> int:
        """Episodes of a task: 1 + M (K - 1) a tree; for `every` one only what is sure, the backbone."""
        forks = 0 if self.select == "every" else math.ceil(self.points) * (self.siblings - 1)
        return self.trees * (1 + forks)


class Grow(Settings):
    """Tree-GRPO: `rounds` times, `expansions` turns of every tree are drawn at random and continued to the end."""

    kind: Literal["grow"]
    trees: Positive = 2
    rounds: Positive = 1
    expansions: Positive = 2

    @property
    def group_size(self) -> int:
        """Episodes of a task."""
        return self.trees * (1 + self.rounds * self.expansions)


class EntropyBranch(Settings):
    """ARPO: a chain is forked before a turn with probability clip(base + weight * dH, 0, 1).

    dH: entropy of the turn's first `tokens` tokens (their sum, over ln |V|) minus that of the chain's first turn.
    initial: chains at the start. leaves: episodes of a task; missing ones are filled up with fresh chains. beam: chains
    that go on from one turn, at most.
    """

    kind: Literal["entropy_branch"]
    initial: Positive = 8
    leaves: Positive = 16
    beam: Several = 2
    base: Share = 0.5
    weight: AtLeast0 = 0.2
    tokens: Positive = 20

    @model_validator(mode="after")
    def _order(self) -> EntropyBranch:
        if self.initial > self.leaves:
            raise ValueError(f"initial {self.initial} is larger than leaves {self.leaves}")
        return self

    @property
    def group_size(self) -> int:
        """Episodes of a task."""
        return self.leaves


class StateScore(Settings):
    """3SPO's state scores S = exp(-lambda(t) p) behind a gate, and the step reward made of them.

    alpha, clock: lambda = alpha ln t, with t the iteration (from 1), 1 + the finished trajectories of the run, or 1 +
    the state's visits. key, scope: what a state is, and which tasks share it. max_failures, min_success: the gate
    closes a state with at least so many failures and at most this share of successes. gate_root: it may close a task's
    first state. warmup_iterations: it stays open until the moving average of success exceeds twice `min_success`, but
    no longer than so many iterations. count: a state is counted once per leaf below it, or once per tree with the share
    of successes. decay: of all counts per iteration. novelty: the next state is new on its path, differs from the one
    before, was never counted, or nothing is paid. novelty_decay: of its weight per visit; fixed_weight: a constant
    weight in place of it. potential: what the difference of scores is taken of: ungated scores (0 after a success, 1
    after a failure), the scores themselves, or nothing. success: paid as 0 or 1, or as the environment's reward.
    """

    alpha: AtLeast0 = 1.0
    clock: Literal["iteration", "trajectories", "visits"] = "iteration"
    key: Literal["state", "observation"] = "state"
    scope: Literal["task", "task_type", "global"] = "task"
    max_failures: Positive = 10
    min_success: Share = 0.1
    gate_root: bool = False
    warmup_iterations: Annotated[int, Field(ge=0)] = 10
    count: Literal["tree", "leaf"] = "tree"
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.98
    novelty: Literal["trajectory", "changed", "unseen", "none"] = "trajectory"
    novelty_decay: AtLeast0 = 0.1
    fixed_weight: Annotated[float, Field(ge=0.0, le=0.5)] | None = None
    potential: Literal["ungated", "gated", "none"] = "ungated"
    success: Literal["binary", "score"] = "binary"


class Expand(Settings):
    """3SPO: best-first trees; a round samples n = ceil(max_actions * S) responses at one state of every tree.

    allocation: `uniform` always samples `max_actions`, whatever score and gate say. backtrack: all live children are
    expanded in turn, or only the best one. children: one per distinct action, or every one. max_responses: of a tree.
    max_leaves: a tree with so many is not expanded further.
    """

    kind: Literal["expand"]
    max_actions: Several = 8
    allocation: Literal["adaptive", "uniform"] = "adaptive"
    backtrack: bool = True
    children: Literal["distinct", "all"] = "distinct"
    max_responses: Positive = 128
    max_leaves: Positive = 8
    score: StateScore = StateScore()

    @property
    def group_size(self) -> int:
        """Responses that are compared with each other, at most."""
        return self.max_actions


class Team(Settings):
    """Groups of independent episodes of the experiment's team; every transition is an event of one or more members."""

    kind: Literal["team"]
    group_size: Positive = 8


TopologyConfig = Annotated[Chains | Branch | Grow | EntropyBranch | Expand | Team, Field(discriminator="kind")]
