"""A sampled number and its error (T11).

No sampled quantity leaves the library as a bare float: it is an `Estimate`, whose interval is
a t-interval on the number of independent units (prompts). An interval that cannot be trusted
is NaN, and `warnings` says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from scipy.stats import t as student_t


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
        method: The estimator that made it: "sequence", "prefix", "doubly-robust", ...
        ess: Effective sample size of the importance weights, if weights were used.
        khat: Pareto shape of the importance weights' tail, if weights were used.
        warnings: Sentences on what limits the number's use.
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
    ) -> Estimate:
        """Attach a t-interval with n - 1 degrees of freedom.

        Args:
            value: Point estimate.
            se: Its standard error.
            n: Number of independent units.
            unit: Unit of value, se and the interval.
            method: Name of the estimator.
            confidence: Nominal coverage of the interval.
            ess: Effective sample size, if any.
            khat: Pareto tail shape, if any.
            warnings: Sentences carried with the number.
            trusted: False leaves the interval out (NaN): its error bar is not to be believed.

        Returns:
            The estimate with its interval.
        """
        known = trusted and n > 1 and math.isfinite(se)
        half = float(student_t.ppf(0.5 + confidence / 2, n - 1)) * se if known else math.nan
        return cls(
            value, se, value - half, value + half, n, unit, method, ess, khat, tuple(warnings)
        )

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
