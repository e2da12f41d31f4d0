"""The ratio of two estimates, and Fieller's interval for it (T8), (T11).

    { x : (a − x b)² ≤ t² Var(a − x b) }

with t the quantile of Student's t: every x for which a − x b is not distinguishable from zero. It
covers at its rate however large the error of b is; a ± t SE of the ratio does not once b is within
a few errors of zero, where the ratio has no finite interval at all.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from isentrope.estimate import Estimate, t_quantile
from isentrope.estimators.jackknife import Jackknifed


def fieller(
    top: float, bottom: float, covariance: tuple[float, float, float], t: float
) -> tuple[float, float]:
    """The ends of Fieller's set for top/bottom.

    Args:
        top: a.
        bottom: b.
        covariance: Var a, Cov(a, b), Var b.
        t: The quantile.

    Returns:
        (low, high). Where b may be zero but not both, low > high: the set is all x ≥ low and all
        x ≤ high. Where both may be zero it is every x, (−inf, inf).
    """
    vaa, vab, vbb = (t * t * v for v in covariance)
    a, b, k = bottom**2 - vbb, top * bottom - vab, top**2 - vaa  # a x² − 2 b x + k ≤ 0
    root = max(b * b - a * k, 0.0) ** 0.5
    if a > 0 or (a < 0 and k > 0):
        return (b - root) / a, (b + root) / a
    return -math.inf, math.inf


def ratio_of(
    result: Jackknifed, top: int, bottom: int, *, name: str, confidence: float, **options: Any
) -> Estimate:
    """|a/b| with Fieller's interval, by the participation of the ratio's own influences.

    Args:
        result: The jackknifed statistics with their joint error.
        top: Row of a.
        bottom: Row of b.
        name: Of b, for the warning.
        confidence: Nominal coverage of the interval.
        **options: Of `Estimate.from_influences`.

    Returns:
        The estimate; its interval has no upper end, and a warning, where b may be zero. NaN where
        b is zero.
    """
    a, b = float(result.values[top]), float(result.values[bottom])
    value = a / b if b else math.nan
    influences = (result.influences[top] - value * result.influences[bottom]) / (b or 1.0)
    ratio = Estimate.from_influences(abs(value), influences, confidence=confidence, **options)
    if not math.isfinite(ratio.ci_low) or ratio.degrees_of_freedom is None:
        return ratio
    (vaa, vab), (_, vbb) = result.covariance[[top, bottom]][:, [top, bottom]].tolist()
    t = t_quantile(ratio.degrees_of_freedom, confidence)
    low, high = fieller(a, b, (vaa, vab, vbb), t)
    near, far = sorted((abs(low), abs(high)))
    if low <= high < math.inf:
        return replace(ratio, ci_low=0.0 if low <= 0 <= high else near, ci_high=far)
    warning = f"{name} is not distinguishable from zero here: the interval has no upper end."
    least = near if low > high else 0.0
    return replace(ratio, ci_low=least, ci_high=math.inf, warnings=(*ratio.warnings, warning))
