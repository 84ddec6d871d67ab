"""Settings of a method: one choice per part."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.advantage import (
    AdvantageConfig,
    Empg,
    EntropyScale,
    EventZscore,
    Gae,
    Gigpo,
    GroupMean,
    GroupZscore,
    Hgpo,
    LeaveOneOut,
    ModifierConfig,
    Reinforcepp,
    Remax,
    Sibling,
    StateScoreAdvantage,
    TreeWeighted,
    Vine,
)
from agentbench_rl.config.loss import EntropyClip, LossConfig, MovedCentre, PolicyGradient, SetClip, TokenClip
from agentbench_rl.config.schedule import OneStepOff, OnPolicy, PostStep, RewardSwap, ScheduleConfig
from agentbench_rl.config.settings import Above0, AtLeast0, Positive, Settings
from agentbench_rl.config.topology import Branch, Chains, Expand, ResampleConfig, Team, TopologyConfig

RewardView = Literal["outcome", "process", "success"]

#: Columns of `scores.parquet` that a method may need.
ScoreColumn = Literal["old_logprobs", "reference_logprobs", "values", "final_value", "entropies"]


class OverlongConfig(Settings):
    """Soft penalty of long responses: 0 up to max - cache tokens, then linear, -factor at `max_tokens`."""

    max_tokens: Positive
    cache_tokens: Positive
    factor: Above0 = 1.0

    @model_validator(mode="after")
    def _order(self) -> OverlongConfig:
        if self.cache_tokens > self.max_tokens:
            raise ValueError(f"cache_tokens {self.cache_tokens} is larger than max_tokens {self.max_tokens}")
        return self


class ToolCallBonus(Settings):
    """Reward of every tool call of a turn, decayed to 0 by a cosine over `decay_iterations`."""

    value: Above0
    decay_iterations: Positive = 100


class RewardConfig(Settings):
    """Which reward is credited, and what is taken from or added to a turn's own score.

    view: the environment's reward (`outcome`), its dense reward (`process`), or 1 for a success and 0 for the rest.
    kl_coefficient: weight of the k1 estimate that is taken from the reward of every token.
    """

    view: RewardView = "outcome"
    scale: Above0 = 1.0
    invalid_action_penalty: AtLeast0 = 0.0
    overlong: OverlongConfig | None = None
    tool_call_bonus: ToolCallBonus | None = None
    kl_coefficient: AtLeast0 = 0.0


class SelectionConfig(Settings):
    """Which of the sampled rows are trained on; the others are counted.

    keep_groups: share of groups, those with the largest std of returns, and all that tie with the last of them; the
    others are dropped whole, before any statistic. Rows that are dropped are not trained on, but count in the
    statistics of their episode and group. drop_invalid: responses without a well-formed action. drop_overlong:
    responses of at least so many tokens. drop_repetitive: responses in which more than this share of the token 4-grams
    occurred before.
    """

    keep_groups: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    drop_invalid: bool = False
    drop_overlong: Positive | None = None
    drop_repetitive: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None


class CriticConfig(Settings):
    """The critic: a value head on its own copy of the start policy's backbone (`separate`) or on the policy's.

    coefficient: weight of the value loss; with a shared backbone its gradient reaches the policy's weights too.
    """

    backbone: Literal["separate", "shared"] = "separate"
    learning_rate: Above0 = 1e-5
    value_clip: Above0 | None = 0.5
    coefficient: Above0 = 1.0


class ReplayConfig(Settings):
    """SPEAR's replay of earlier rows with a positive advantage.

    capacity: rows; the buffer is replayed, and emptied, when it holds more than `fill` times as many. max_age:
    iterations. history: group means that the recalibrating median is taken of. The weight of the replay loss rises
    to 1 over `warmup_iterations`.
    """

    capacity: Positive = 2048
    fill: Above0 = 1.5
    max_age: Positive = 10
    history: Positive = 10240
    divide_by_std: bool = False
    warmup_iterations: Positive = 200


class AlgorithmConfig(Settings):
    """A method: one choice per part."""

    source: str
    topology: TopologyConfig = Chains()
    schedule: ScheduleConfig = OnPolicy()
    reward: RewardConfig = RewardConfig()
    selection: SelectionConfig = SelectionConfig()
    advantage: AdvantageConfig
    modifiers: tuple[ModifierConfig, ...] = ()
    loss: LossConfig = TokenClip()
    critic: CriticConfig | None = None
    replay: ReplayConfig | None = None
    old_logprobs: Literal["recompute", "sampler"] = "recompute"

    @model_validator(mode="before")
    @classmethod
    def _usual_kinds(cls, data: Any) -> Any:
        """A topology or a schedule that does not say its kind is of the usual one."""
        usual = {"topology": "chains", "schedule": "on_policy"}
        if not isinstance(data, dict):
            return data
        named = {key: {"kind": kind} | data[key] for key, kind in usual.items() if isinstance(data.get(key), dict)}
        return data | named

    @model_validator(mode="after")
    def _tree_fits(self) -> AlgorithmConfig:
        """Topology, schedule and estimator that were made for each other."""
        advantage, topology = self.advantage, self.topology
        every = isinstance(topology, Branch) and topology.select == "every"
        if isinstance(advantage, Sibling | TreeWeighted) and (not isinstance(topology, Branch) or every):
            raise ValueError(
                f"advantage.estimator {advantage.estimator} compares siblings: it needs topology.kind: branch, "
                "and topology.select other than every"
            )
        among_trees = getattr(advantage, "root_weight", 0.0) > 0.0 or getattr(advantage, "baseline", "batch") == "task"
        if among_trees and isinstance(topology, Branch) and topology.trees == 1:
            raise ValueError(
                "advantage.root_weight and advantage.baseline: task compare the trees of a task: raise topology.trees"
            )
        if isinstance(advantage, Vine) != every:
            raise ValueError("advantage.estimator: vine goes with topology.kind: branch and topology.select: every")
        expand = isinstance(topology, Expand)
        if isinstance(advantage, StateScoreAdvantage) != expand or isinstance(self.schedule, PostStep) != expand:
            raise ValueError(
                "topology.kind: expand, schedule.kind: post_step and advantage.estimator: state_score go together"
            )
        if expand and self.reward.view != "outcome":
            raise ValueError("reward.view: 3SPO credits its own step reward; topology.score.success tells what it pays")
        by_row = isinstance(advantage, Sibling | TreeWeighted | Vine | StateScoreAdvantage)
        spread = self.selection.keep_groups < 1.0
        if by_row and (self.modifiers or self.replay or spread or self.reward.kl_coefficient > 0):
            raise ValueError(
                f"advantage.estimator {advantage.estimator}: modifiers, replay, selection.keep_groups and "
                "reward.kl_coefficient belong to episodes, and this estimator credits single turns"
            )
        if expand and self.needs_entropy_scores:
            raise ValueError(
                f"schedule.kind: post_step decides on updates before tokens are scored, so loss.kind {self.loss.kind}, "
                "which reads their entropies, does not go with it"
            )
        return self

    @model_validator(mode="after")
    def _team_fits(self) -> AlgorithmConfig:
        """What credits or clips events needs a team's; and what a team's events do not have."""
        advantage, loss = self.advantage, self.loss
        by_event = isinstance(advantage, EventZscore)
        shared = isinstance(advantage, EventZscore) and advantage.group != "agent"
        if (by_event or isinstance(loss, SetClip)) and not isinstance(self.topology, Team):
            raise ValueError("advantage.estimator: event_zscore and loss.kind: set_clip need topology.kind: team")
        if isinstance(loss, SetClip) and not shared:
            raise ValueError(
                "loss.kind: set_clip clips an event as one action, so its members share one advantage: it needs "
                "advantage.estimator: event_zscore, and advantage.group other than agent"
            )
        if isinstance(self.topology, Team) and (self.critic is not None or self.replay is not None):
            raise ValueError("topology.kind: team: a critic and replay know single agents only")
        if by_event and (self.modifiers or self.selection != SelectionConfig() or self.reward.kl_coefficient > 0):
            raise ValueError(
                "advantage.estimator: event_zscore: modifiers, selection and reward.kl_coefficient belong to single "
                "responses, and this estimator credits whole events"
            )
        return self

    @model_validator(mode="after")
    def _swap_fits(self) -> AlgorithmConfig:
        """A host whose advantages of collected episodes can be stored, or told by a critic."""
        swaps = isinstance(self.schedule, RewardSwap)
        if swaps != isinstance(self.loss, MovedCentre):
            raise ValueError("schedule.kind: reward_swap and loss.kind: moved_centre go together")
        if not swaps:
            return self
        hosts = GroupZscore | GroupMean | LeaveOneOut | Gigpo | Hgpo | Gae
        if not isinstance(self.advantage, hosts) or not isinstance(self.topology, Chains) or self.resample:
            raise ValueError(
                "schedule.kind: reward_swap has the hosts group_zscore, group_mean, leave_one_out, gigpo, hgpo and gae "
                "(advantage.estimator), on topology.kind: chains without resample"
            )
        if self.reward.view == "process" or self.reward.kl_coefficient > 0:
            raise ValueError(
                "schedule.kind: reward_swap trains the policy on the outcome alone: reward.view must not be process, "
                "and reward.kl_coefficient must be 0"
            )
        if self.modifiers or self.replay is not None or self.old_logprobs == "sampler":
            raise ValueError(
                "schedule.kind: reward_swap replays episodes of its own: modifiers and replay do not go with it, and "
                "their log-probs are recomputed (old_logprobs: recompute)"
            )
        return self

    @model_validator(mode="after")
    def _lag_fits(self) -> AlgorithmConfig:
        """A loss that corrects for the policy that sampled."""
        if self.staleness and isinstance(self.loss, PolicyGradient):
            raise ValueError(
                "schedule.kind: one_step_off trains on what the policy before the last update sampled, and loss.kind: "
                "policy_gradient has no importance ratio to correct for it; take a loss with one, or schedule.kind: "
                "on_policy"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> AlgorithmConfig:
        advantage = self.advantage
        grouped = not isinstance(advantage, Gae | Reinforcepp | Remax | Vine)
        if self.topology.group_size == 1 and grouped and getattr(advantage, "singleton", "zero") != "raw":
            raise ValueError(
                f"advantage.estimator {advantage.estimator} needs groups larger than one: "
                "raise topology.group_size (or set advantage.singleton: raw, where it has that setting)"
            )
        if isinstance(advantage, Gae) != (self.critic is not None):
            raise ValueError("critic goes with advantage.estimator: gae, and only with it")
        if isinstance(advantage, Remax) != self.greedy_baseline:
            raise ValueError("topology.greedy_baseline goes with advantage.estimator: remax, and only with it")
        by_token = isinstance(advantage, Reinforcepp) or (
            isinstance(advantage, Gae) and advantage.granularity != "turn"
        )
        if by_token and any(isinstance(modifier, Empg) for modifier in self.modifiers):
            raise ValueError(f"modifiers: empg scales one advantage per turn; {advantage.estimator} has one per token")
        kinds = [modifier.kind for modifier in self.modifiers]
        if {"empg", "entropy_scale"} <= set(kinds) and kinds.index("entropy_scale") < kinds.index("empg"):
            raise ValueError("modifiers: empg scales one advantage per turn; put it before entropy_scale")
        by_spread = self.selection.keep_groups < 1.0 or self.resample is not None or "group_std_scale" in kinds
        if self.topology.group_size == 1 and by_spread:
            raise ValueError(
                "selection.keep_groups, topology.resample and modifiers: group_std_scale look at the spread of groups "
                "larger than one: raise topology.group_size"
            )
        if by_token and self.replay is not None:
            raise ValueError(f"replay recalibrates one advantage per episode; {advantage.estimator} has one per token")
        if self.replay is not None and isinstance(self.loss, EntropyClip):
            raise ValueError("replay: loss.kind entropy_clip needs entropies, which replayed responses do not have")
        return self

    @property
    def has_stages(self) -> bool:
        """Whether an iteration is nothing but its stages, each of which may be a job; else it is run as a whole."""
        return isinstance(self.schedule, OnPolicy | OneStepOff)

    @property
    def staleness(self) -> int:
        """How many updates behind an iteration's policy the one is that samples its rollout."""
        return int(isinstance(self.schedule, OneStepOff))

    def behaviour_version(self, iteration: int) -> int:
        """The policy that samples an iteration's rollout: the one after so many updates."""
        return max(0, iteration - self.staleness)

    @property
    def needs_dense_model(self) -> bool:
        """Whether an explorer is taught by the experiment's model of dense rewards."""
        schedule = self.schedule
        return isinstance(schedule, RewardSwap) and schedule.source == "dense" and schedule.dense_reward == "model"

    @property
    def greedy_baseline(self) -> bool:
        """Whether a greedy episode is played beside every group."""
        return isinstance(self.topology, Chains) and self.topology.greedy_baseline

    @property
    def resample(self) -> ResampleConfig | None:
        """Settings of dynamic sampling, if there is any."""
        return self.topology.resample if isinstance(self.topology, Chains) else None

    @property
    def score_columns(self) -> tuple[ScoreColumn, ...]:
        """What the score stage computes for this method; nothing: there is no such stage."""
        kl_in_reward = self.reward.kl_coefficient > 0
        needed: dict[ScoreColumn, bool] = {
            "old_logprobs": self.old_logprobs == "recompute" or kl_in_reward,
            "reference_logprobs": self.loss.kl_coefficient > 0 or kl_in_reward,
            "values": self.critic is not None,
            "final_value": isinstance(self.advantage, Gae) and self.advantage.truncation == "bootstrap",
            "entropies": self.needs_entropies,
        }
        return tuple(name for name, wanted in needed.items() if wanted)

    @property
    def checkpoint(self) -> tuple[str, ...]:
        """What an update leaves to the next one, by name: the policy, its optimizer, and those of the critic."""
        return ("policy", "trainer", *(("critic", "critic_trainer") if self.critic else ()))

    @property
    def needs_entropies(self) -> bool:
        """Whether the advantage stage reads token entropies."""
        return self.needs_entropy_scores or any(isinstance(item, Empg | EntropyScale) for item in self.modifiers)

    @property
    def needs_entropy_scores(self) -> bool:
        """Whether the loss reads `entropy_scores` of `advantages.parquet`."""
        return isinstance(self.loss, EntropyClip)

    @property
    def advantage_reads_scores(self) -> bool:
        """Whether the advantage stage reads `scores.parquet`: log-probs for reward or replay, values or entropies."""
        remembered = self.replay is not None and self.old_logprobs == "recompute"
        return remembered or self.reward.kl_coefficient > 0 or self.critic is not None or self.needs_entropies
