"""What results.json of `measure` says of a learning rate, of the linear range and of the checks.

Keys of that file are

    schema        "isentrope/measure/1"
    policy        checkpoint, optimizer, trainable parameters, temperature, device, precision
    batches       B_E sequences, B_U prompt groups, G responses per group; statistics of E and U
    estimator     functional, method, order, unit
    settings      keys: value, from (which file), training's own; differs; ignored
    step          learning_rate, gradient_norm, clip_factor, direction_norm, matched_by, ...
    entropy       per_sequence, per_token: Estimates at θ
    first_order, second_order, pathwise      Estimates; null if not asked for
    sweep         one row per rate: eta, delta_h (and _se, _ci_low, _ci_high), first_order =
                  ηδH₁, second_order = η²δH₂ (each and _se), residual (and _se, _ci_low, _ci_high,
                  _verdict), ess and ess_whole (of the batch), ess_integrated (over the vocabulary,
                  from which the verdict follows), carriers, khat, verdict, method, resampled;
                  deltaH_true, deltaH_approx and deltaH_second are the notes' names of the same
    linear_range  Estimate of η* = |δH₁/δH₂|, with `rate_over_range`
    budget        δH₁ per unit η: total, momentum, decay, gradient, each with its _se
    reward        at_theta = J, first_order, second_order, top or no_top (why there is none), sweep:
                  one row per rate, with delta_j in place of delta_h; absent without rewards
    price         whole and at (by class of positions): tokens, entropy, first_order = ηδF, share,
                  reward = ηδJ, reward_for_a_nat, each an Estimate; momentum, cosine; at "group
                  NAME", where prompts of E have groups, change = ΔF too
    checks        score_identity and martingale: each _z, _p (of both, by Bonferroni) and _verdict;
                  rounding_floor
    warnings      sentences on what limits the use of these numbers
    timing        seconds by stage, and total
    provenance    versions, seeds

An Estimate is written as {value, se, ci_low, ci_high, n, unit, method, ess, khat, warnings}. What
cannot be known (an interval where the weights are heavy-tailed, for one) is null.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import FiniteFloat

from isentrope.estimators.reward_change import RewardOrders
from isentrope.estimators.rounding_floor import RoundingFloor
from isentrope.nouns.estimate import Estimate
from isentrope.results.result import also_as

NAN = math.nan


@dataclass(frozen=True, kw_only=True)
class AtRate:
    """What is known at one learning rate. Numbers that are not there are NaN.

    Attributes:
        eta: The learning rate.
        first_order: The prediction to first order, such as ηδH₁.
        first_order_se: Its standard error.
        second_order: What the second order adds, such as η²δH₂.
        second_order_se: Its standard error.
        residual: The change as measured less both orders, on the same samples.
        residual_se: Its standard error.
        residual_ci_low: Lower end of its interval.
        residual_ci_high: Upper end.
        verdict: On the weights: "trust", "smooth" or "resample".
    """

    eta: FiniteFloat
    first_order: float
    first_order_se: float
    second_order: float
    second_order_se: float
    residual: float = NAN
    residual_se: float = NAN
    residual_ci_low: float = NAN
    residual_ci_high: float = NAN
    verdict: str

    @property
    def place(self) -> str:
        """Where it is in its sweep."""
        return f"[{self.eta:g}]"

    @property
    def total(self) -> float:
        """What both orders predict."""
        return self.first_order + self.second_order


@dataclass(frozen=True, kw_only=True)
class SweepRow(AtRate):
    """ΔH at one learning rate.

    Attributes:
        delta_h: ΔH(η) as measured.
        delta_h_se: Its standard error.
        delta_h_ci_low: Lower end of its interval.
        delta_h_ci_high: Upper end.
        residual_verdict: Whether the residual's error can be trusted; None without a residual.
        ess: Effective sample size of the weights.
        ess_whole: Of the weights of whole responses.
        ess_integrated: Over the vocabulary.
        carriers: Responses that carry the weights.
        khat: Pareto shape of the weights' tail.
        method: The estimator.
        resampled: ΔH(η) from fresh responses, where they were drawn.
    """

    delta_h: float
    delta_h_se: float
    delta_h_ci_low: float
    delta_h_ci_high: float
    residual_verdict: str | None = None
    ess: float = NAN
    ess_whole: float = NAN
    ess_integrated: float = NAN
    carriers: float = NAN
    khat: float = NAN
    method: str
    resampled: Estimate | None = None

    @property
    def effective_size(self) -> float:
        """The effective sample size that the verdict follows from; NaN of fresh responses."""
        return self.ess if math.isnan(self.ess_integrated) else self.ess_integrated


SavedRow = Annotated[SweepRow, also_as("deltaH_true", "deltaH_approx", "deltaH_second")]
"""A row, written with the names of the notes too."""


@dataclass(frozen=True)
class LinearRange(Estimate):
    """η* = |δH₁/δH₂|.

    Attributes:
        rate_over_range: The learning rate of interest over it; None where it is 0.
    """

    rate_over_range: float | None = None


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Whether the instrument is sound; None where an identity was not tested.

    Attributes:
        score_identity_z: E[Σ ∂_v s] = 0, as a z-score.
        score_identity_p: Adjusted for both tests.
        score_identity_verdict: In a word.
        martingale_z: E[S + Σ H] = 0, as a z-score.
        martingale_p: Adjusted for both tests.
        martingale_verdict: In a word.
        rounding_floor: What rounding alone does.
    """

    score_identity_z: float | None
    score_identity_p: float | None = None
    score_identity_verdict: str | None = None
    martingale_z: float | None
    martingale_p: float | None = None
    martingale_verdict: str | None = None
    rounding_floor: RoundingFloor


@dataclass(frozen=True, kw_only=True)
class RewardRow(AtRate):
    """ΔJ at one learning rate, in units of reward.

    Attributes:
        delta_j: ΔJ(η) as measured.
        delta_j_se: Its standard error.
        delta_j_ci_low: Lower end of its interval.
        delta_j_ci_high: Upper end.
    """

    delta_j: float
    delta_j_se: float
    delta_j_ci_low: float
    delta_j_ci_high: float

    def change(self, at_theta: Estimate) -> Estimate:
        """ΔJ(η) with its interval.

        Args:
            at_theta: J at θ, which has the number of prompts.

        Returns:
            The change; no interval where the weights cannot be trusted.
        """
        return Estimate.of_columns(
            "delta_j", vars(self), at_theta.n, at_theta.unit, at_theta.method
        )


@dataclass(frozen=True, kw_only=True)
class RewardRecord(RewardOrders):
    """ΔJ(η) with its first and second order.

    Attributes:
        at_theta: J before the step.
        sweep: One row per learning rate.
    """

    at_theta: Estimate
    sweep: tuple[RewardRow, ...]

    def at(self, eta: float | None) -> RewardRow | None:
        """The row of a learning rate; None if ΔJ was not measured there."""
        return next((row for row in self.sweep if row.eta == eta), None)
