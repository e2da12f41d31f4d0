"""The ratio of two estimates, and its interval (T8), (T11).

    { x : (a − x b)² ≤ t² Var(a − x b) }

with t the quantile of Student's t: every x for which a − x b is not distinguishable from zero. It
covers at its rate however large the error of b is; a ± t SE of the ratio does not once b is within
a few errors of zero, where the ratio has no finite interval at all.

A share or a price, whose sign is that of b, is shown with an interval only where |b| is at least
`LEAST_DISTANCE` of its errors. Those are selected batches, in which |b| is too large as a rule, so
their t is longer, continuously towards the switch:

    t √(1 + (5/u)²),     u = |b|/SE(b)
"""

import math
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from isentrope.estimators.jackknife import Jackknifed
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile

Sign = Literal["any", "none", "plus"]
"""Of what an interval is: a/b, |a/b|, or an a/b that cannot be negative."""

LEAST_DISTANCE = 4.0
"""Errors of b that |b| must be, for an a/b of either sign to have an interval."""

SELECTED = 5.0
"""Errors of b at which the quantile is √2 as long."""


def quantile_from(t: float, distance: float) -> float:
    """The quantile for an a/b of either sign.

    Args:
        t: The quantile where b is far from zero.
        distance: |b| in its errors.

    Returns:
        A longer one; infinite where there is no interval.
    """
    if not distance >= LEAST_DISTANCE:
        return math.inf
    return t * math.hypot(1.0, SELECTED / distance)


def fieller(top: float, bottom: float, covariance: Tensor, t: float) -> tuple[float, float]:
    """The ends of Fieller's set for top/bottom.

    Args:
        top: a.
        bottom: b.
        covariance: (2, 2) of a and b.
        t: The quantile.

    Returns:
        (low, high). Where b may be zero but not both, low > high: the set is all x ≥ low and all
        x ≤ high. Where both may be zero it is every x, (−inf, inf).
    """
    scaled = t * t * covariance
    # the set is u x² − 2 v x + w ≤ 0
    u = bottom**2 - float(scaled[1, 1])
    v = top * bottom - float(scaled[0, 1])
    w = top**2 - float(scaled[0, 0])
    root = max(v * v - u * w, 0.0) ** 0.5
    if u > 0 or (u < 0 and w > 0):
        return (v - root) / u, (v + root) / u
    return -math.inf, math.inf


def ratio_of(
    result: Jackknifed,
    top: int,
    bottom: int,
    *,
    name: str,
    confidence: float,
    sign: Sign = "none",
    **options: Any,
) -> Estimate:
    """a/b or |a/b| with Fieller's interval, by the participation of the ratio's own influences.

    Args:
        result: The jackknifed statistics with their joint error.
        top: Row of a.
        bottom: Row of b.
        name: Of b, for the warning.
        confidence: Nominal coverage of the interval.
        sign: "any" or "none".
        **options: Of `Estimate.from_influences`.

    Returns:
        The estimate; its interval has no upper end (that of a/b no end), and a warning, where b may
        be zero. NaN where b is zero.
    """
    a = float(result.values[top])
    b = float(result.values[bottom])
    value = a / b if b else math.nan
    # φ of a/b, by the quotient rule
    influences = (result.influences[top] - value * result.influences[bottom]) / (b or 1.0)
    value = abs(value) if sign == "none" else value
    ratio = Estimate.from_influences(value, influences, confidence=confidence, **options)
    if not math.isfinite(ratio.ci_low) or ratio.degrees_of_freedom is None:
        return ratio
    covariance = result.covariance[[top, bottom]][:, [top, bottom]]
    t = t_quantile(ratio.degrees_of_freedom, confidence)
    low, high = interval_of_ratio(a, b, covariance, t, sign=sign)
    warnings = ratio.warnings
    if math.isnan(low):
        warnings = (*warnings, too_near_zero(name, a, b, covariance, t))
    elif high == math.inf:
        no_end = f"{name} is not distinguishable from zero here: the interval has no upper end."
        warnings = (*warnings, no_end)
    return replace(ratio, ci_low=low, ci_high=high, warnings=warnings)


def too_near_zero(name: str, top: float, bottom: float, covariance: Tensor, t: float) -> str:
    """Why a/b of either sign has no interval, and what is known of it.

    Args:
        name: Of b.
        top: a.
        bottom: b.
        covariance: (2, 2) of a and b.
        t: The quantile.

    Returns:
        A sentence with Fieller's set in words.
    """
    low, high = fieller(top, bottom, covariance, t)
    fits = f"between {low:.2g} and {high:.2g}"
    if low > high:
        fits = f"below {high:.2g} or above {low:.2g}"
    if math.isinf(low):
        fits = "any value"
    distance = abs(bottom) / math.sqrt(float(covariance[1, 1]) or math.inf)
    return (
        f"{name} is {distance:.1f} of its errors from zero, and a ratio to it has an interval from "
        f"{LEAST_DISTANCE:.0f} on: {fits} is not excluded."
    )


def interval_of_ratio(
    top: float, bottom: float, covariance: Tensor, t: float, *, sign: Sign
) -> tuple[float, float]:
    """An interval from Fieller's set.

    Args:
        top: a.
        bottom: b.
        covariance: (2, 2) of a and b.
        t: The quantile.
        sign: Of what.

    Returns:
        The ends. Where b may be zero there is no upper end, and of "any" no interval (NaN).
    """
    if sign == "any":
        error = math.sqrt(max(float(covariance[1, 1]), 0.0))
        t = quantile_from(t, abs(bottom) / error if error else math.inf)
        if math.isinf(t):
            return math.nan, math.nan
    low, high = fieller(top, bottom, covariance, t)
    bounded = low <= high < math.inf
    if sign == "any":
        return (low, high) if bounded else (math.nan, math.nan)
    near, far = sorted((abs(low), abs(high)))
    if sign == "plus":
        near = max(low, 0.0)
        far = max(high, 0.0)
    if bounded:
        return 0.0 if low <= 0 <= high else near, far
    return near if low > high else 0.0, math.inf
