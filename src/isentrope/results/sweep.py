"""What results.json of `measure` says of a learning rate, of the linear range and of the checks."""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import FiniteFloat

from isentrope.estimators.identities import RoundingFloor
from isentrope.estimators.reward_change import RewardOrders
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
