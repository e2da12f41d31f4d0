"""A sampled number and its error (T11).

Every sampled quantity is an `Estimate`, never a bare float. Its interval is a t-interval. Its
degrees of freedom are those of the standard error: the number of independent units (prompts) minus
one, or the number of groups minus one where the error is a jackknife over
groups. An interval that cannot be trusted is NaN, and `warnings` says why.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from scipy.stats import t as student_t

Functional = Literal["per_sequence", "per_token"]
"""The entropy that is estimated: ℋ of a response, or h of a token (T1)."""


BOUNDS = {
    "share": (0.0, 1.0),
    "share of tr K": (0.0, 1.0),
    "fraction of |K|²": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
    "rms cosine": (0.0, 1.0),
    "correlation": (-1.0, 1.0),
    "rank correlation": (-1.0, 1.0),
    "adjusted Rand index": (-1.0, 1.0),
}
"""By unit, the values that a quantity can have; no interval reaches beyond them."""


def within_bounds(low: float, high: float, unit: str | None) -> tuple[float, float]:
    """The ends of an interval, as far as the quantity can be.

    Args:
        low: Lower end.
        high: Upper end.
        unit: Of the quantity.

    Returns:
        Both ends; NaN stays NaN.
    """
    least, most = BOUNDS.get(unit or "", (-math.inf, math.inf))
    low, high = (least if x < least else most if x > most else x for x in (low, high))
    return low, high


def t_quantile(degrees_of_freedom: float, confidence: float = 0.95) -> float:
    """The factor from a standard error to half of an interval.

    Args:
        degrees_of_freedom: Of the standard error.
        confidence: Nominal coverage.

    Returns:
        The two-sided quantile of Student's t: 2.36 for 7 degrees of freedom, 1.96 for many.

    Raises:
        ValueError: If the coverage is not between 0 and 1.
    """
    require_confidence(confidence)
    return float(student_t.ppf(0.5 + confidence / 2, degrees_of_freedom))


def require_confidence(confidence: float) -> None:
    """Refuse a coverage that no interval has.

    Args:
        confidence: Nominal coverage.

    Raises:
        ValueError: If it is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.95, got {confidence}.")


@dataclass(frozen=True)
class Estimate:
    """One estimated quantity.

    Attributes:
        value: The point estimate, in `unit`.
        se: Standard error of `value`, in `unit` (infinitesimal jackknife over prompts).
        ci_low: Lower end of the two-sided interval; NaN where no interval can be trusted.
        ci_high: Upper end of the interval.
        n: Number of independent units (prompt draws) behind the number.
        unit: For example "nats per token".
        method: The estimator: "sequence", "prefix", "doubly-robust", ...
        ess: Effective sample size of the importance weights, if weights were used.
        khat: Pareto shape of the importance weights' tail, if weights were used.
        warnings: Sentences on what limits the number's use.
        degrees_of_freedom: Of `se`: the interval is `value` ± t(degrees_of_freedom) · `se`, on the
            scale that `method` names; None where the interval is of another kind.
    """

    value: float
    se: float
    ci_low: float
    ci_high: float
    n: int
    unit: str
    method: str
    ess: float | None = None
    khat: float | None = None
    warnings: tuple[str, ...] = ()
    degrees_of_freedom: float | None = None

    def __post_init__(self) -> None:
        low, high = within_bounds(self.ci_low, self.ci_high, self.unit)
        object.__setattr__(self, "ci_low", low)
        object.__setattr__(self, "ci_high", high)

    @classmethod
    def from_standard_error(
        cls,
        value: float,
        se: float,
        n: int,
        *,
        unit: str,
        method: str,
        confidence: float = 0.95,
        ess: float | None = None,
        khat: float | None = None,
        warnings: Iterable[str] = (),
        trusted: bool = True,
        degrees_of_freedom: float | None = None,
    ) -> Estimate:
        """Attach a t-interval.

        Args:
            value: Point estimate.
            se: Its standard error.
            n: Number of independent units.
            unit: Unit of value, se and the interval.
            method: Name of the estimator.
            confidence: Nominal coverage of the interval.
            ess: Effective sample size, if any.
            khat: Pareto tail shape, if any.
            warnings: Warnings on the number.
            trusted: False omits the interval (NaN), because the error bar cannot be trusted.
            degrees_of_freedom: Of the standard error; None for n - 1.

        Returns:
            The estimate with its interval.
        """
        df = n - 1 if degrees_of_freedom is None else degrees_of_freedom
        bounded = trusted and df > 0 and math.isfinite(se)
        half = t_quantile(df, confidence) * se if bounded else math.nan
        return cls(
            value, se, value - half, value + half, n, unit, method, ess, khat, tuple(warnings), df
        )

    def on_log_scale(self, confidence: float = 0.95) -> Estimate:
        """The same estimate with the interval value · exp(± t se/value).

        For positive quantities that are skewed to the right: the interval stays above zero and
        reaches further up than down.

        Args:
            confidence: Nominal coverage.

        Returns:
            The estimate; unchanged where it has no interval, or is not positive.
        """
        df = self.degrees_of_freedom
        if df is None or not math.isfinite(self.ci_low) or not self.value > 0:
            return self
        factor = math.exp(t_quantile(df, confidence) * self.se / self.value)
        return replace(self, ci_low=self.value / factor, ci_high=self.value * factor)

    def covers(self, truth: float) -> bool:
        """Whether the interval contains `truth`; False where there is no interval."""
        return self.ci_low <= truth <= self.ci_high

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}

    def __str__(self) -> str:
        interval = (
            f"[{self.ci_low:.4g}, {self.ci_high:.4g}]" if math.isfinite(self.ci_low) else "[-]"
        )
        return f"{self.value:.4g} ± {self.se:.2g} {interval} {self.unit}"
