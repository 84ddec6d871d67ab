"""Settings of the advantage estimators (a union by `estimator`) and of their modifiers (by `kind`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.settings import Above0, AtLeast0, Settings, Share

Statistics = Literal["per_trajectory", "per_row"]
Singleton = Literal["zero", "raw"]


class _Grouped(Settings):
    statistics: Statistics = "per_trajectory"
    singleton: Singleton = "zero"


class GroupZscore(_Grouped):
    """GRPO."""

    estimator: Literal["group_zscore"] = "group_zscore"
    epsilon: Above0 = 1e-6


class GroupMean(_Grouped):
    """Dr. GRPO."""

    estimator: Literal["group_mean"] = "group_mean"


class LeaveOneOut(_Grouped):
    """RLOO."""

    estimator: Literal["leave_one_out"] = "leave_one_out"


class Reinforcepp(Settings):
    """REINFORCE++: whitened returns over the tokens of a turn (`row`) or of the whole episode (`token`)."""

    estimator: Literal["reinforcepp"] = "reinforcepp"
    granularity: Literal["row", "token"] = "token"
    gamma: Share = 1.0


class ReinforceppBaseline(_Grouped):
    """REINFORCE++-baseline: whitened differences to the group mean."""

    estimator: Literal["reinforcepp_baseline"] = "reinforcepp_baseline"


class Gae(Settings):
    """Generalised advantage estimation; `turn_gamma` is read by `bi_level` only.

    truncation: an episode cut at a limit ends with value 0 (`terminal`) or with the critic's (`bootstrap`), which
    granularity `row`, whose returns end with the response, does not know.
    """

    estimator: Literal["gae"] = "gae"
    granularity: Literal["row", "token", "turn", "bi_level"] = "token"
    gamma: Share = 1.0
    lam: Share = 1.0
    turn_gamma: Share = 0.95
    whiten: bool = True
    truncation: Literal["terminal", "bootstrap"] = "terminal"

    @model_validator(mode="after")
    def _continued(self) -> Gae:
        if self.granularity == "row" and self.truncation == "bootstrap":
            raise ValueError("advantage.truncation: bootstrap needs credit across turns; granularity row has none")
        return self


class Gigpo(_Grouped):
    """GiGPO."""

    estimator: Literal["gigpo"] = "gigpo"
    epsilon: Above0 = 1e-6
    gamma: Share = 0.95
    omega: AtLeast0 = 1.0
    normalisation: Literal["mean_std", "mean"] = "mean_std"
    anchor: Literal["exact", "similarity"] = "exact"
    similarity: Share = 0.95


class Hgpo(Settings):
    """HGPO; `base` adds the episode advantage as the item k = 0."""

    estimator: Literal["hgpo"] = "hgpo"
    history: Annotated[int, Field(ge=0)] = 2
    alpha: AtLeast0 = 1.0
    gamma: Share = 0.95
    normalisation: Literal["mean_std", "mean"] = "mean_std"
    base: bool = False
    epsilon: Above0 = 1e-6


class TreeZscore(Settings):
    """Tree-GRPO: z-score over the leaves of a tree plus that over the leaves of the task; `intra`: the former alone."""

    estimator: Literal["tree_zscore"] = "tree_zscore"
    levels: Literal["both", "intra"] = "both"
    epsilon: Above0 = 1e-6


class MtGrpo(Settings):
    """MT-GRPO: group z-score of the turn's dense reward plus `outcome_weight` times that of the outcome."""

    estimator: Literal["mt_grpo"] = "mt_grpo"
    singleton: Singleton = "zero"
    outcome_weight: AtLeast0 = 1.0
    epsilon: Above0 = 1e-6


class Opo(Settings):
    """OPO: length-weighted group mean as baseline."""

    estimator: Literal["opo"] = "opo"
    singleton: Singleton = "zero"


class Gpg(_Grouped):
    """GPG: deviation from the group mean over the constant `f_norm`."""

    estimator: Literal["gpg"] = "gpg"
    f_norm: Above0 = 1.0


class PassAtK(Settings):
    """Pass@k-GRPO: only the best episode of a group gets its lead over the second best."""

    estimator: Literal["pass_at_k"] = "pass_at_k"
    divide_by_std: bool = True
    epsilon: Above0 = 1e-6


class Gdpo(Settings):
    """GDPO: weighted sum of the group z-scores of outcome, dense reward and share of valid turns, then whitened."""

    estimator: Literal["gdpo"] = "gdpo"
    outcome_weight: AtLeast0 = 1.0
    process_weight: AtLeast0 = 1.0
    valid_weight: AtLeast0 = 0.0
    epsilon: Above0 = 1e-6


class Remax(Settings):
    """ReMax: difference to the greedy episode of the same task."""

    estimator: Literal["remax"] = "remax"


class Sibling(Settings):
    """BPO as published: the lead over the mean of the other siblings at a branch point, no std, no critic.

    suffix: all turns from the branch on carry it, or the branching turn alone. prefix, lam: what an earlier turn of the
    backbone gets: of the next branch point, discounted by lam per turn; or the discounted sum, or mean, of all later
    ones. layout: a shared turn is trained once, or once per sibling, each copy with its sibling's advantage.
    root_weight: of the lead of a backbone over the other backbones of its task, which is added on all its turns.
    """

    estimator: Literal["sibling"] = "sibling"
    suffix: Literal["suffix", "action"] = "suffix"
    prefix: Literal["nearest", "sum", "mean"] = "nearest"
    lam: Share = 0.95
    layout: Literal["dedup", "replicated"] = "dedup"
    root_weight: AtLeast0 = 0.0


class TreeWeighted(Settings):
    """The unbiased tree estimator: leads over siblings by backed-up returns, weighted by the share of the tree.

    baseline: of turns before the first branch point: the mean of the backed-up returns of the task's other trees, or of
    all other trees of the batch.
    """

    estimator: Literal["tree_weighted"] = "tree_weighted"
    baseline: Literal["task", "batch"] = "batch"


class Vine(Settings):
    """VinePPO: A = r + V' - V, with V the mean return of fresh continuations from the state."""

    estimator: Literal["vine"] = "vine"


class StateScoreAdvantage(Settings):
    """3SPO: step rewards of the responses at one state, centred and divided by their standard deviation.

    std_floor: the least divisor. min_std: a group of less spread teaches nothing.
    """

    estimator: Literal["state_score"] = "state_score"
    normalisation: Literal["mean_std", "mean"] = "mean_std"
    epsilon: Above0 = 1e-6
    std_floor: AtLeast0 = 0.05
    min_std: AtLeast0 = 1e-4


class EventZscore(Settings):
    """SRPO: z-score of the team's return over the events of one kind; an event's members share its advantage.

    group: events are compared with those of the task of the same type, of the same type and round (AT-GRPO), or every
    response with those of the same agent (Dr. MAS).
    """

    estimator: Literal["event_zscore"] = "event_zscore"
    group: Literal["event_type", "event_type_and_round", "agent"] = "event_type"
    singleton: Singleton = "zero"
    epsilon: Above0 = 1e-6


AdvantageConfig = Annotated[
    GroupZscore
    | GroupMean
    | LeaveOneOut
    | Reinforcepp
    | ReinforceppBaseline
    | Gae
    | Gigpo
    | Hgpo
    | TreeZscore
    | MtGrpo
    | Opo
    | Gpg
    | PassAtK
    | Gdpo
    | Remax
    | Sibling
    | TreeWeighted
    | Vine
    | StateScoreAdvantage
    | EventZscore,
    Field(discriminator="estimator"),
]


class Empg(Settings):
    """EMPG: scale by the turn's certainty, add a bonus for the certainty of the next turn, centre over the batch."""

    kind: Literal["empg"] = "empg"
    k: AtLeast0 = 1.0
    future_k: AtLeast0 = 1.0
    zeta: AtLeast0 = 0.05


class EntropyScale(Settings):
    """AEPO: multiply by 1 + weight * z-score of the token's entropy."""

    kind: Literal["entropy_scale"] = "entropy_scale"
    weight: AtLeast0 = 0.2


class GroupStdScale(Settings):
    """Soft variance filter: multiply by the group's std of returns over the largest of the batch."""

    kind: Literal["group_std_scale"] = "group_std_scale"


ModifierConfig = Annotated[Empg | EntropyScale | GroupStdScale, Field(discriminator="kind")]
