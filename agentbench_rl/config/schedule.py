"""When a method samples and when it updates: a union by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.settings import Above0, AtLeast0, Positive, Settings


class OnPolicy(Settings):
    """An iteration is one rollout and one update."""

    kind: Literal["on_policy"] = "on_policy"


class OneStepOff(Settings):
    """An iteration is one rollout and one update, and samples while the iteration before it updates.

    So it samples with the policy before the last update (the first two with the start policy), and that policy's
    log-probs are the old ones of the importance ratio.
    """

    kind: Literal["one_step_off"] = "one_step_off"


class PostStep(Settings):
    """An iteration is many rounds: after every one, what it sampled is trained on before the next state is visited.

    update_every: rounds between updates. min_responses: that teach something; fewer wait for a later update, at the
    latest that of the iteration's last round. minibatches: optimizer steps of an update. max_responses: an iteration
    ends with the round that reaches so many.
    """

    kind: Literal["post_step"]
    update_every: Positive = 1
    min_responses: Annotated[int, Field(ge=0)] = 0
    minibatches: Positive = 1
    max_responses: Positive | None = None


class RewardSwap(Settings):
    """RSPO: loops of `period` dense updates of a copy of the policy, a collection by it, `period` outcome updates.

    An iteration is one outcome update, on the episodes that the policy sampled and on collected ones, whose dense
    rewards are gone. share: alpha, of the tasks of an iteration; it samples that many fewer, rounded down, and 0
    replays nothing. buffer_tasks: collected per loop; null: twice the tasks that an iteration samples. source: who
    collects: the copy trained on dense rewards, a copy trained on the outcome, or the policy itself (its episodes of
    the loop before). unit: what is drawn; selection: the best by outcome, the groups of most varied outcome, or any.
    ties: of equal ones those of larger advantage first (of groups: of larger mean absolute advantage), or in the order
    of the buffer. replacement: an episode may be drawn again within a loop. positive_only: nothing below its group's
    mean is drawn. mix: both losses are normalised apart and weighted by the share, or all responses are one batch.
    optimizer: the copy begins with a fresh optimizer, or the policy's. critic: the copy has its own (PPO), or shares
    it. behaviour: log-probs of collected responses by the trainer, or the sampler's. dense_reward: the environment's
    own, or those of the experiment's `dense_model`. dense_scale: of dense rewards, times reward.scale; dense_placement:
    their sum at the last turn, or each at its own. dense_noise: standard deviation of a Gaussian noise on each.
    critic_on_replay: the critic learns from collected episodes too.
    """

    kind: Literal["reward_swap"]
    period: Positive = 3
    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.125
    buffer_tasks: Positive | None = None
    source: Literal["dense", "outcome", "history"] = "dense"
    unit: Literal["episode", "group"] = "episode"
    selection: Literal["reward", "variance", "random"] = "reward"
    ties: Literal["advantage", "order"] = "advantage"
    replacement: bool = False
    positive_only: bool = False
    mix: Literal["weighted", "concat"] = "weighted"
    optimizer: Literal["fresh", "copied"] = "fresh"
    critic: Literal["separate", "shared"] = "separate"
    behaviour: Literal["trainer", "sampler"] = "trainer"
    dense_reward: Literal["process", "model"] = "process"
    dense_scale: Above0 = 1.0
    dense_placement: Literal["last", "turn"] = "last"
    dense_noise: AtLeast0 = 0.0
    critic_on_replay: bool = True

    @model_validator(mode="after")
    def _groups_vary(self) -> RewardSwap:
        if self.selection == "variance" and self.unit != "group":
            raise ValueError("schedule.selection: variance compares groups: set schedule.unit: group")
        return self


ScheduleConfig = Annotated[OnPolicy | OneStepOff | PostStep | RewardSwap, Field(discriminator="kind")]
