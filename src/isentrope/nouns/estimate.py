"""A sampled number and its error (T11).

Every sampled quantity is an `Estimate`, never a bare float. Its interval is a t-interval, by the
degrees of freedom of its error (`freedom`). An interval that cannot be trusted is NaN, and
`warnings` says why; so is one of no width, because a batch whose units all agree does not show the
error.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isentrope.nouns.freedom import held_by_few, participation, t_quantile
from isentrope.system.formatting import Format
from isentrope.system.one_line import one_line

HANDFUL = 10
"""Participation below which few units carry a number, and a sixth of the units if that is less."""

ROUNDING_SHARE = 1e-12
"""Part of a value below which its error is that of arithmetic in float64, not of sampling."""

NO_SPREAD = "Nothing differs between the units of this batch: it shows no error, and no interval."
"""The warning of a number with an error of zero."""


BOUNDS = {
    "share": (0.0, 1.0),
    "share of tr K": (0.0, 1.0),
    "fraction of |K|²": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
    "rms cosine": (0.0, 1.0),
    "difference of cosines": (-2.0, 2.0),
    "difference of rms cosines": (-1.0, 1.0),
    "correlation": (-1.0, 1.0),
    "rank correlation": (-1.0, 1.0),
    "adjusted Rand index": (-1.0, 1.0),
    "sequences": (1.0, math.inf),
    "responses": (1.0, math.inf),
    "dimensions": (1.0, math.inf),
}
"""By unit, the values that a quantity can have; no interval reaches beyond them."""

NET_SHARE = "share of the net δ"
"""Unit of a part of a sum whose parts may have unlike signs: below 0 and above 1 as well."""


def within_bounds(value: float, low: float, high: float, unit: str | None) -> tuple[float, float]:
    """The ends of an interval, as far as the quantity can be, and the value itself.

    Args:
        value: The point estimate, which stays inside.
        low: Lower end.
        high: Upper end.
        unit: Of the quantity.

    Returns:
        Both ends; NaN stays NaN.
    """
    minimum, maximum = BOUNDS.get(unit or "", (-math.inf, math.inf))
    low, high = (min(max(x, min(minimum, value)), max(maximum, value)) for x in (low, high))
    return low, high


ESTIMATE_COLUMNS = {"value": "", "se": "_se", "ci_low": "_ci_low", "ci_high": "_ci_high"}
"""Fields of an estimate in a table, and how the columns of a quantity with a name end."""


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
        low, high = within_bounds(self.value, self.ci_low, self.ci_high, self.unit)
        vars(self).update(ci_low=low, ci_high=high)

    @classmethod
    def from_standard_error(
        cls,
        value: float,
        se: float,
        n: int,
        *,
        confidence: float = 0.95,
        degrees_of_freedom: float | None = None,
        trusted: bool = True,
        strain: float = 0.0,
        warnings: tuple[str, ...] = (),
        **fields: Any,
    ) -> Estimate:
        """Attach a t-interval; none where the error is zero.

        Args:
            value: Point estimate.
            se: Its standard error.
            n: Number of independent units.
            confidence: Nominal coverage of the interval.
            degrees_of_freedom: Of the standard error; None for n - 1.
            trusted: False omits the interval (NaN), because the error bar cannot be trusted.
            strain: What 1/df has in addition, where a verdict that depends on the batch decides
                whether there is an interval (`importance`).
            warnings: Sentences on what limits the number's use.
            **fields: unit and method, and ess and khat where importance weights were used.

        Returns:
            The estimate with its interval.
        """
        df = n - 1 if degrees_of_freedom is None else degrees_of_freedom
        df = df / (1 + strain * df)
        half = math.nan
        freedom = df
        if se <= ROUNDING_SHARE * abs(value):
            warnings = (*warnings, NO_SPREAD)
            freedom = None  # that of rounding has no meaning
        elif trusted and df > 0 and math.isfinite(se):
            half = t_quantile(df, confidence) * se
        fields |= {"warnings": warnings, "degrees_of_freedom": freedom}
        return cls(value, se, value - half, value + half, n, **fields)

    @classmethod
    def from_influences(
        cls,
        value: float,
        influences: ArrayLike,
        *,
        warnings: tuple[str, ...] = (),
        at_most: int | None = None,
        order: int = 1,
        **options: Any,
    ) -> Estimate:
        """Attach the error that influences give, and a t-interval by their participation.

        Args:
            value: Point estimate.
            influences: (P,) φ of the units, less their mean: SE² = P/(P−1) Σ φ².
            warnings: Sentences on what limits the number's use.
            at_most: Largest n, where the influences are of fewer independent units.
            order: Of the derivative, or of what is left of a change. The influences of the second
                contain squares of those of the first, whose tail index is half as large, those of
                the third cubes: so are the degrees of freedom.
            **options: Of `from_standard_error`: unit, method, confidence, trusted, ...

        Returns:
            The estimate, with a warning where a handful of units carry it.
        """
        squares = np.square(np.asarray(influences, dtype=np.float64))
        n = len(squares)
        carriers = participation(squares)
        se = math.sqrt(n / (n - 1) * float(squares.sum())) if n > 1 else math.nan
        n = min(n, at_most or n)
        if se > 0 and carriers < min(HANDFUL, n / 6):
            sentence = held_by_few("this number", carriers, "responses")
            warnings = (*warnings, f"{sentence}: {_LONG}")
        freedom = min(max((carriers - 1) / order, 1.0), n - 1.0)
        return cls.from_standard_error(
            value, se, n, warnings=warnings, degrees_of_freedom=freedom, **options
        )

    @classmethod
    def exact(cls, value: float, n: int, *, unit: str, method: str) -> Estimate:
        """A number that does not depend on the sample, such as the effect of no decay.

        Args:
            value: The number.
            n: Number of independent units of the numbers beside it.
            unit: Its unit.
            method: Name of the estimator.

        Returns:
            The number with an error of zero and an interval of no width.
        """
        return cls(value, 0.0, value, value, n, unit, method)

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
        factor = math.exp(min(t_quantile(df, confidence) * self.se / self.value, 700.0))
        return replace(self, ci_low=self.value / factor, ci_high=self.value * factor)

    def covers(self, truth: float) -> bool:
        """Whether the interval contains `truth`; False where there is no interval."""
        return self.ci_low <= truth <= self.ci_high

    def columns(self, name: str = "") -> dict[str, float]:
        """Value, error and interval, for a table.

        Args:
            name: Of the value's column, and of the others before _se, _ci_low and _ci_high.

        Returns:
            Number by column; value, se, ci_low and ci_high without a name.
        """
        return {
            name + end if name else field: getattr(self, field)
            for field, end in ESTIMATE_COLUMNS.items()
        }

    def scaled(self, factor: float, unit: str = "") -> Estimate:
        """The same estimate times a number, with its interval.

        Args:
            factor: The number.
            unit: Unit of the product; that of the estimate if empty.

        Returns:
            The product.
        """
        ends = sorted((factor * self.ci_low, factor * self.ci_high))
        return replace(
            self,
            value=factor * self.value,
            se=abs(factor) * self.se,
            ci_low=ends[0],
            ci_high=ends[1],
            unit=unit or self.unit,
        )

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}

    def __repr__(self) -> str:
        return one_line(self, f"{self}, n = {self.n}")

    def __str__(self) -> str:
        interval = (
            f"[{self.ci_low:.4g}, {self.ci_high:.4g}]" if math.isfinite(self.ci_low) else "[-]"
        )
        return f"{_AS_TEXT.with_error(self.value, self.se)} {interval} {self.unit}"


_AS_TEXT = Format(typeset=False, error_digits=2)

_LONG = (
    "its interval is long for that reason, and another batch may hold others that weigh as much."
)
