"""Settings of the policy losses: a union by `kind`, each with its own settings and what every loss has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.settings import Above0, AtLeast0, Settings

PositiveShare = Annotated[float, Field(gt=0, le=1)]


class _Regularised(Settings):
    """What every loss has: KL to the start policy and an entropy bonus."""

    kl_coefficient: AtLeast0 = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: AtLeast0 = 0.0

    @property
    def silent_without_advantage(self) -> bool:
        """Whether a response whose advantages are all 0 has no gradient."""
        return self.kl_coefficient == 0 and self.entropy_coefficient == 0


class _Loss(_Regularised):
    """What losses of single responses have: aggregation and sequence mask."""

    aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "sequence_mean_token_sum_norm"
    ] = "token_mean"
    norm_constant: Above0 | None = None
    sequence_mask: Above0 | None = None

    @model_validator(mode="after")
    def _norm(self) -> _Loss:
        if (self.aggregation == "sequence_mean_token_sum_norm") != (self.norm_constant is not None):
            raise ValueError(
                "loss.norm_constant goes with loss.aggregation: sequence_mean_token_sum_norm, and only with it"
            )
        return self


class TokenClip(_Loss):
    """PPO's clip of the token ratio."""

    kind: Literal["token_clip"] = "token_clip"
    clip_low: Above0 = 0.2
    clip_high: Above0 = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0


class MovedCentre(_Loss):
    """RSPO: the token clip, around the ratio of the old to the behaviour policy where another policy sampled.

    dual_clip: of responses of this iteration; dual_clip_replayed: of others, whose ratio may be large from the start.
    """

    kind: Literal["moved_centre"] = "moved_centre"
    clip_low: Above0 = 0.2
    clip_high: Above0 = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    dual_clip_replayed: Annotated[float, Field(gt=1)] | None = None


class EntropyClip(_Loss):
    """AEPO: the token clip, but tokens of more than mean entropy keep their gradient above the upper bound."""

    kind: Literal["entropy_clip"] = "entropy_clip"
    clip_low: Above0 = 0.2
    clip_high: Above0 = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0


class SequenceClip(_Loss):
    """GSPO and GSPO-token: clip of one ratio per response, the mean or the sum of its token log-ratios."""

    kind: Literal["sequence_clip"] = "sequence_clip"
    clip_low: Above0 = 3e-4
    clip_high: Above0 = 4e-4
    pooling: Literal["mean", "sum"] = "mean"


class Cispo(_Loss):
    """CISPO: clipped ratio as a constant weight of the log-prob."""

    kind: Literal["cispo"] = "cispo"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_high: Above0 = 0.2


class Sapo(_Loss):
    """SAPO: sigmoid gate of the ratio, of its own temperature for either sign of the advantage."""

    kind: Literal["sapo"] = "sapo"
    tau_positive: Above0 = 1.0
    tau_negative: Above0 = 1.05


class Gmpo(_Loss):
    """GMPO: geometric mean of token ratios whose logarithms are clipped."""

    kind: Literal["gmpo"] = "gmpo"
    clip_low: Above0 = 0.4
    clip_high: Above0 = 0.4


class ClipCov(_Loss):
    """Clip-Cov: a random share of the tokens whose covariance lies in (cov_low, cov_high) loses its gradient."""

    kind: Literal["clip_cov"] = "clip_cov"
    clip_low: Above0 = 0.2
    clip_high: Above0 = 0.2
    share: PositiveShare = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0


class KlCov(_Loss):
    """KL-Cov: the share of tokens of largest covariance pays for moving away from the old policy."""

    kind: Literal["kl_cov"] = "kl_cov"
    share: PositiveShare = 2e-4
    coefficient: AtLeast0 = 1.0

    @property
    def silent_without_advantage(self) -> bool:
        """Tokens that the gate chooses pay whatever their advantage."""
        return False


class Dppo(_Loss):
    """DPPO: tokens whose probability moved too far (total variation or binary KL) lose their gradient.

    threshold: the paper's is 0.15 with tv and 0.05 with kl. truncation: upper bound of the importance weight.
    """

    kind: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    threshold: Above0 = 0.15
    truncation: Annotated[float, Field(gt=1)] = 20.0


class PolicyGradient(_Loss):
    """REINFORCE: advantage times log-prob."""

    kind: Literal["policy_gradient"] = "policy_gradient"


class SetClip(_Regularised):
    """SRPO: one ratio, one advantage and one clip per event, for the set of responses that it consumed together.

    set_norm: the sum of the K members' log-ratios over sqrt(K), as it is, or over K. len_norm: a member's log-ratio
    over its number of tokens (GSPO for K = 1), or over the square root of it. reduction: what counts once.
    """

    kind: Literal["set_clip"] = "set_clip"
    clip_low: PositiveShare = 0.2
    clip_high: Above0 = 0.2
    set_norm: Literal["sqrt", "none", "mean"] = "sqrt"
    len_norm: Literal["none", "mean", "sqrt"] = "none"
    reduction: Literal["event", "member", "token"] = "event"
    kl_coefficient: AtLeast0 = 0.0


#: Losses of single responses.
ResponseLoss = (
    TokenClip | MovedCentre | EntropyClip | SequenceClip | Cispo | Sapo | Gmpo | ClipCov | KlCov | Dppo | PolicyGradient
)
LossConfig = Annotated[ResponseLoss | SetClip, Field(discriminator="kind")]
