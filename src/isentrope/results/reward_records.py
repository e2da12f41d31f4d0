"""What results.json of `measure` says of the expected reward J."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from isentrope.nouns.estimate import Estimate
from isentrope.results.measure_records import NAN
from isentrope.results.result_coding import OPTIONAL, Number, Value


@dataclass(frozen=True, kw_only=True)
class RewardRow:
    """ΔJ at one learning rate, in units of reward. Numbers that are not there are NaN.

    Attributes:
        eta: The learning rate.
        delta_j: ΔJ(η) as measured.
        delta_j_se: Its standard error.
        delta_j_ci_low: Lower end of its interval.
        delta_j_ci_high: Upper end.
        first_order: ηδJ₁, the prediction to first order.
        first_order_se: Its standard error.
        second_order: η²δJ₂, what the second order adds.
        second_order_se: Its standard error.
        residual: ΔJ(η) − ηδJ₁ − η²δJ₂, on the same samples.
        residual_se: Its standard error.
        residual_ci_low: Lower end of its interval.
        residual_ci_high: Upper end.
        verdict: On the weights: "trust", "smooth" or "resample".
    """

    eta: float
    delta_j: Number
    delta_j_se: Number
    delta_j_ci_low: Number
    delta_j_ci_high: Number
    first_order: Number
    first_order_se: Number
    second_order: Number
    second_order_se: Number
    residual: Number = NAN
    residual_se: Number = NAN
    residual_ci_low: Number = NAN
    residual_ci_high: Number = NAN
    verdict: str

    def change(self, at_theta: Estimate) -> Estimate:
        """ΔJ(η) with its interval.

        Args:
            at_theta: J at θ, which has the number of prompts.

        Returns:
            The change; no interval where the weights cannot be trusted.
        """
        ends = self.delta_j_ci_low, self.delta_j_ci_high
        parts = at_theta.n, at_theta.unit, at_theta.method
        return Estimate(self.delta_j, self.delta_j_se, *ends, *parts)


@dataclass(frozen=True, kw_only=True)
class RewardRecord:
    """ΔJ(η) with its first and second order.

    Attributes:
        at_theta: J before the step.
        first_order: δJ₁ per unit η; None if it was not asked for.
        second_order: δJ₂ per unit η².
        top: η_top = −δJ₁/(2δJ₂), where the parabola is highest; None where none follows.
        no_top: Why none follows.
        sweep: One row per learning rate.
    """

    at_theta: Value
    first_order: Value | None
    second_order: Value | None
    top: Annotated[Value | None, OPTIONAL] = None
    no_top: Annotated[str | None, OPTIONAL] = None
    sweep: tuple[RewardRow, ...]

    def at(self, eta: float | None) -> RewardRow | None:
        """The row of a learning rate; None if ΔJ was not measured there."""
        return next((row for row in self.sweep if row.eta == eta), None)
