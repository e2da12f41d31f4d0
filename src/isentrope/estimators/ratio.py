"""The ratio of two estimates, and its interval (T8), (T11).

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

from torch import Tensor

from isentrope.estimate import Estimate, t_quantile
from isentrope.estimators.jackknife import Jackknifed
from isentrope.estimators.tail import tail_degrees_of_freedom, too_few


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


def with_fieller(
    ratio: Estimate, result: Jackknifed, top: int, bottom: int, *, name: str, confidence: float
) -> Estimate:
    """An estimate of |a/b| with Fieller's interval in place of its t-interval.

    Args:
        ratio: |a/b|; returned unchanged where it has no t-interval.
        result: The jackknifed statistics with their joint error.
        top: Row of a.
        bottom: Row of b.
        name: Of b, for the warning.
        confidence: Nominal coverage of the interval.

    Returns:
        The estimate; its interval has no upper end, and a warning, where b may be zero.
    """
    if not math.isfinite(ratio.ci_low) or ratio.degrees_of_freedom is None:
        return ratio
    a, b = float(result.values[top]), float(result.values[bottom])
    (vaa, vab), (_, vbb) = result.covariance[[top, bottom]][:, [top, bottom]].tolist()
    t = t_quantile(ratio.degrees_of_freedom, confidence)
    low, high = fieller(a, b, (vaa, vab, vbb), t)
    near, far = sorted((abs(low), abs(high)))
    if low <= high < math.inf:
        return replace(ratio, ci_low=0.0 if low <= 0 <= high else near, ci_high=far)
    warning = f"{name} is not distinguishable from zero here: the interval has no upper end."
    least = near if low > high else 0.0
    return replace(ratio, ci_low=least, ci_high=math.inf, warnings=(*ratio.warnings, warning))


def noise_over_square(x: Tensor, factor: float, confidence: float) -> Estimate:
    """The number of prompts factor · s²/(m² − s²/n), with the error of m and of s².

    Intervals are made for κ = m/s, which is smooth where m passes zero: κ ± t SE by a jackknife
    that deletes one prompt, with the degrees of freedom of the tail of (x_p − m)².

    Args:
        x: (n,) x_p of mean m and variance s², two or more, not all equal.
        factor: Of the ratio.
        confidence: Nominal coverage.

    Returns:
        The ratio, in prompts, with one end where m may be zero.
    """
    n, kappa = len(x), float(x.mean() / x.std())
    centred = x - x.mean()
    shift = -centred / (n - 1)  # (n,) of the mean, without each
    variances = (centred.square().sum() - centred.square()) - (n - 1) * shift.square()
    deleted = (x.mean() + shift) / (variances.clamp_min(0) / (n - 2)).sqrt()
    se = float(((1 - 1 / n) * (deleted - deleted.mean()).square().sum()).sqrt())
    short = too_few(n, "prompts")
    half = math.nan if short else t_quantile(tail_degrees_of_freedom(x), confidence) * se
    square = kappa**2 - 1 / n
    value = factor / square if square > 0 else math.inf
    error = factor * 2 * se / abs(kappa) ** 3 if square > 0 else math.inf
    certain = not abs(kappa) <= half
    low = factor / (abs(kappa) + half) ** 2
    high = factor / (abs(kappa) - half) ** 2 if certain else math.inf
    warnings = short or (() if certain else (_NO_SIGN,))
    return Estimate(
        value, error, low, high, n, "prompts", "delete-one jackknife", warnings=warnings
    )


_NO_SIGN = (
    "The sign of the mean is not certain on these prompts, so their number is bounded from below "
    "only."
)
