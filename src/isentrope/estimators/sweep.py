"""What is known of a change at one learning rate: as it is estimated, and as a row of a sweep.

The rows are saved and printed as they declare it (`nouns.columns`).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Self, TypedDict

from pydantic import FiniteFloat

from isentrope.estimators.importance import Trust, Verdict
from isentrope.nouns.columns import WITH_ERROR, Column, FlatRow
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent


class Orders(TypedDict):
    """What the first two orders predict at a learning rate; None for one that is not known."""

    first_order: Estimate | None
    second_order: Estimate | None


def orders_at(eta: float, first: Estimate | None, second: Estimate | None, unit: str) -> Orders:
    """The prediction to each order, such as ηδH₁ and η²δH₂.

    Args:
        eta: η.
        first: The slope, per unit η.
        second: Half of the curvature, per unit η².
        unit: Of the change.

    Returns:
        Both, by the names of their columns.
    """
    return {
        "first_order": None if first is None else first.scaled(eta, unit),
        "second_order": None if second is None else second.scaled(eta * eta, unit),
    }


@dataclass(frozen=True, kw_only=True)
class RateRow(FlatRow):
    """A change at one learning rate, and what its first two orders predict.

    Attributes:
        eta: The learning rate η.
        change: The change as measured; no interval where the weights cannot be trusted.
        first_order: The prediction to first order, such as ηδH₁; None without derivatives.
        second_order: What the second order adds, such as η²δH₂; None likewise.
        residual: The change less both orders, with its own (paired) error; None likewise.
    """

    eta: Annotated[FiniteFloat, Column("η", form=".3g")]
    change: Annotated[Estimate, Column()]
    first_order: Annotated[
        Estimate | None, Column("first order", rank=2, form=".3g", parts=WITH_ERROR)
    ]
    second_order: Annotated[
        Estimate | None, Column("first + second", "total", rank=4, parts=WITH_ERROR)
    ]
    residual: Annotated[Estimate | None, Column()] = None

    @property
    def place(self) -> str:
        """Where it is in its sweep."""
        return f"[{self.eta:g}]"

    @property
    def total(self) -> float:
        """What both orders predict; NaN without them."""
        if self.first_order is None or self.second_order is None:
            return math.nan
        return self.first_order.value + self.second_order.value


@dataclass(frozen=True, kw_only=True)
class ChangeAtRate(RateRow):
    """A change at one learning rate as it is estimated on a batch.

    Attributes:
        trust: Diagnostics of the weights at this η, or of those at θ where they are worse.
        residual_trust: The same for the residual, which requires more of the weights.
        first_over_change: ηδH₁/ΔH on the same responses; None without derivatives.
    """

    trust: Trust
    residual_trust: Trust | None = None
    first_over_change: Estimate | None = None

    @property
    def ess(self) -> float:
        """Effective sample size, in this batch, of the weights that the method uses."""
        return self.change.ess or math.nan

    @property
    def ess_integrated(self) -> float:
        """Effective sample size with each token integrated over the vocabulary; NaN if unknown."""
        return self.trust.ess_integrated

    @property
    def khat(self) -> float:
        """PSIS k̂ of the whole-sequence weights."""
        return self.trust.khat

    @property
    def verdict(self) -> Verdict:
        """One of "trust", "smooth" and "resample"."""
        return self.trust.verdict


@dataclass(frozen=True, kw_only=True)
class SweepRow(RateRow):
    """ΔH at one learning rate, as it is saved.

    Attributes:
        residual_verdict: Whether the residual's error can be trusted; None without a residual.
        ess: Effective sample size of the weights.
        ess_whole: Effective sample size of the weights of whole responses.
        ess_integrated: Effective sample size over the vocabulary.
        carriers: Number of responses that carry the weights.
        khat: Pareto shape of the weights' tail.
        verdict: What the weights allow: "trust", "smooth" or "resample".
        method: The estimator.
        resampled: ΔH(η) from fresh responses, where they were drawn.
        first_over_change: ηδH₁/ΔH on the same responses, with an interval where ΔH is far enough
            from zero for one; None without derivatives.
    """

    change: Annotated[Estimate, Column("ΔH ± se", key="delta_h", interval=1)]
    residual_verdict: Annotated[str | None, Column()] = None
    ess: Annotated[float, Column()] = math.nan
    ess_whole: Annotated[float, Column()] = math.nan
    ess_integrated: Annotated[float, Column("ESS", "effective_size", rank=3, form=".0f")] = math.nan
    carriers: Annotated[float, Column()] = math.nan
    khat: Annotated[float, Column("k̂", rank=5, form=".2f")] = math.nan
    verdict: Annotated[str, Column("verdict")]
    method: Annotated[str, Column()]
    resampled: Estimate | None = None
    first_over_change: Absent[Estimate] = None

    @classmethod
    def from_point(cls, point: ChangeAtRate, resampled: Estimate | None = None) -> Self:
        """The row of a point.

        Args:
            point: ΔH(η) on a batch.
            resampled: ΔH(η) from fresh responses.

        Returns:
            The row.
        """
        trust = point.trust
        return cls(
            eta=point.eta,
            change=point.change,
            first_order=point.first_order,
            second_order=point.second_order,
            residual=point.residual,
            residual_verdict=point.residual_trust and point.residual_trust.verdict,
            ess=point.ess,
            ess_whole=trust.ess_whole,
            ess_integrated=trust.ess_integrated,
            carriers=trust.carriers,
            khat=trust.khat,
            verdict=trust.verdict,
            method=point.change.method,
            resampled=resampled,
            first_over_change=point.first_over_change,
        )

    @property
    def effective_size(self) -> float:
        """The effective sample size that the verdict follows from; NaN of fresh responses."""
        return self.ess if math.isnan(self.ess_integrated) else self.ess_integrated

    @property
    def best(self) -> Estimate:
        """ΔH(η) from fresh responses where they were drawn, and as measured on the batch else."""
        return self.resampled or self.change
