"""What results.json of `measure` says of a learning rate, of the linear range and of the checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from isentrope.nouns.estimate import Estimate
from isentrope.results.former_names import SWEEP_ALIASES, with_names_of_today
from isentrope.results.result_coding import AS_DICT, Number, Value, estimate_from

NAN = math.nan


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """ΔH at one learning rate. Numbers that are not there are NaN.

    Attributes:
        eta: The learning rate.
        delta_h: ΔH(η) as measured.
        delta_h_se: Its standard error.
        delta_h_ci_low: Lower end of its interval.
        delta_h_ci_high: Upper end.
        first_order: ηδH₁, the prediction to first order.
        first_order_se: Its standard error.
        second_order: η²δH₂, what the second order adds.
        second_order_se: Its standard error.
        residual: ΔH(η) − ηδH₁ − η²δH₂, on the same samples.
        residual_se: Its standard error.
        residual_ci_low: Lower end of its interval.
        residual_ci_high: Upper end.
        residual_verdict: Whether its error can be trusted; None where there is no residual.
        ess: Effective sample size of the weights.
        ess_whole: Of the weights of whole responses.
        ess_integrated: Over the vocabulary.
        carriers: Responses that carry the weights.
        khat: Pareto shape of the weights' tail.
        verdict: "trust", "smooth" or "resample".
        method: The estimator.
        resampled: ΔH(η) from fresh responses, where they were drawn.
    """

    eta: float
    delta_h: Number
    delta_h_se: Number
    delta_h_ci_low: Number
    delta_h_ci_high: Number
    first_order: Number
    first_order_se: Number
    second_order: Number
    second_order_se: Number
    residual: Number = NAN
    residual_se: Number = NAN
    residual_ci_low: Number = NAN
    residual_ci_high: Number = NAN
    residual_verdict: str | None = None
    ess: Number = NAN
    ess_whole: Number = NAN
    ess_integrated: Number = NAN
    carriers: Number = NAN
    khat: Number = NAN
    verdict: str
    method: str
    resampled: Value | None = None

    @property
    def effective_size(self) -> float:
        """The effective sample size that the verdict follows from; NaN of fresh responses."""
        return self.ess if math.isnan(self.ess_integrated) else self.ess_integrated

    @property
    def total(self) -> float:
        """ηδH₁ + η²δH₂."""
        return self.first_order + self.second_order


RowValue = Annotated[SweepRow, BeforeValidator(with_names_of_today), SWEEP_ALIASES]
"""A row, written with the former names of its numbers too."""


@dataclass(frozen=True)
class LinearRange(Estimate):
    """η* = |δH₁/δH₂|.

    Attributes:
        rate_over_range: The learning rate of interest over it; None where it is 0.
    """

    rate_over_range: float | None = None


RangeValue = Annotated[LinearRange, BeforeValidator(estimate_from), AS_DICT]


@dataclass(frozen=True)
class RoundingFloor:
    """What rounding alone does.

    Attributes:
        log_weight: To the logarithm of a weight, nats per sequence.
        entropy_change: To ΔH.
        smallest_eta: The learning rate from which ΔH is at least three times that.
    """

    log_weight: Number
    entropy_change: Number
    smallest_eta: float | None


@dataclass(frozen=True)
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
    score_identity_p: float | None
    score_identity_verdict: str | None
    martingale_z: float | None
    martingale_p: float | None
    martingale_verdict: str | None
    rounding_floor: RoundingFloor


def _with_probabilities(content: Any) -> Any:
    """Checks of an earlier version have no probabilities and verdicts; readers use the z-scores."""
    if not isinstance(content, Mapping):
        return content
    tests = ("score_identity", "martingale")
    return {f"{test}_{key}": None for test in tests for key in ("p", "verdict")} | dict(content)


ChecksValue = Annotated[Checks, BeforeValidator(_with_probabilities)]
