"""The ratio of two estimates, and its interval (T8), (T11).

    { x : (a − x b)² ≤ t² Var(a − x b) }

with t the quantile of Student's t: every x for which a − x b is not distinguishable from zero. It
covers at its rate however large the error of b is; a ± t SE of the ratio does not once b is within
a few errors of zero, where the ratio has no finite interval at all.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from isentrope.estimators.functional import Jackknifed
from isentrope.estimators.tail import noise_interval, tail_degrees_of_freedom
from isentrope.nouns.estimate import Estimate, t_quantile

Sign = Literal["any", "none", "plus"]
"""Of what an interval is: a/b, |a/b|, or an a/b that cannot be negative."""


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
    (vaa, vab), (_, vbb) = (t * t * covariance).tolist()
    a, b, k = bottom**2 - vbb, top * bottom - vab, top**2 - vaa  # a x² − 2 b x + k ≤ 0
    root = max(b * b - a * k, 0.0) ** 0.5
    if a > 0 or (a < 0 and k > 0):
        return (b - root) / a, (b + root) / a
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
    a, b = float(result.values[top]), float(result.values[bottom])
    value = a / b if b else math.nan
    influences = (result.influences[top] - value * result.influences[bottom]) / (b or 1.0)
    value = abs(value) if sign == "none" else value
    ratio = Estimate.from_influences(value, influences, confidence=confidence, **options)
    if not math.isfinite(ratio.ci_low) or ratio.degrees_of_freedom is None:
        return ratio
    covariance = result.covariance[[top, bottom]][:, [top, bottom]]
    t = t_quantile(ratio.degrees_of_freedom, confidence)
    low, high = interval_of_ratio(a, b, covariance, t, sign=sign)
    warning = f"{name} is not distinguishable from zero here: the interval has no upper end."
    warnings = ratio.warnings if high < math.inf else (*ratio.warnings, warning)
    return replace(ratio, ci_low=low, ci_high=high, warnings=warnings)


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
    low, high = fieller(top, bottom, covariance, t)
    bounded = low <= high < math.inf
    if sign == "any":
        return (low, high) if bounded else (math.nan, math.nan)
    near, far = sorted((abs(low), abs(high)))
    if sign == "plus":
        near, far = max(low, 0.0), max(high, 0.0)
    if bounded:
        return 0.0 if low <= 0 <= high else near, far
    return near if low > high else 0.0, math.inf


def ratio_of_means(
    tops: Sequence[float],
    bottoms: Sequence[float],
    shared: Tensor,
    *,
    freedom: float,
    confidence: float,
    sign: Sign,
) -> tuple[float, float, float, float]:
    """Mean of a over mean of b, from N ≥ 2 repeats (a_r, b_r), with Fieller's interval.

    A mean of the ratios a_r/b_r has no expectation where b_r may pass zero.

    Args:
        tops: a_r.
        bottoms: b_r.
        shared: (2, 2) covariance of the two means that more repeats do not reduce.
        freedom: Degrees of freedom of `shared`.
        confidence: Nominal coverage.
        sign: Of what the interval is.

    Returns:
        Value a/b, its error, and the ends as of `interval_of_ratio`; NaN where the error is.
    """
    pairs = torch.tensor([[*tops], [*bottoms]], dtype=torch.float64)
    n, (a, b) = len(tops), pairs.mean(1).tolist()
    repeats = pairs.cov() / n
    x = a / b if b else math.inf
    along = torch.tensor([1.0, -x if b else 0.0], dtype=torch.float64)
    parts = [float((along @ c @ along).clamp_min(0)) for c in (repeats, shared)]
    t = t_of_two_errors(parts[0] ** 0.5, parts[1] ** 0.5, n, freedom, confidence)
    se = sum(parts) ** 0.5 / abs(b) if b else math.inf
    ends = interval_of_ratio(a, b, repeats + shared, t, sign=sign)
    return x, se, *((math.nan, math.nan) if math.isnan(se) else ends)


def t_of_two_errors(
    update: float, evaluation: float, n: int, freedom: float, confidence: float = 0.95
) -> float:
    """Quantile for the sum of two variances, each known from its own number of draws.

    Args:
        update: Error over repeats.
        evaluation: Error over prompts.
        n: Repeats, 2 or more.
        freedom: Degrees of freedom of the error over prompts.
        confidence: Nominal coverage.

    Returns:
        The factor from the whole error to half of an interval, √(Σ (t SE)²) over the whole error
        with each error's own quantile; 0 without an error. Satterthwaite's degrees of freedom
        cover .90 where two repeats have half of the variance.
    """
    whole = math.hypot(update, evaluation)
    if not whole > 0:
        return 0.0
    halves = t_quantile(n - 1, confidence) * update, t_quantile(freedom, confidence) * evaluation
    return math.hypot(*halves) / whole


def mean_over_repeats(
    values: Sequence[float], evaluation: float, freedom: float, confidence: float = 0.95
) -> tuple[float, float, float, float]:
    """A mean over repeats that are evaluated on the same prompts.

    Args:
        values: One per repeat.
        evaluation: Error of their mean over prompts.
        freedom: Its degrees of freedom.
        confidence: Nominal coverage.

    Returns:
        The mean, its error, half of its interval (`t_of_two_errors`), and its error over repeats;
        from one repeat no errors.
    """
    of, n = torch.tensor(values, dtype=torch.float64), len(values)
    update = float(of.std()) / math.sqrt(n) if n > 1 else math.nan
    se = math.hypot(update, evaluation)
    half = t_of_two_errors(update, evaluation, n, freedom, confidence) * se
    return float(of.mean()), se, half, update


def noise_over_square(
    x: Tensor, factor: float, confidence: float, *, positive: bool = False
) -> Estimate:
    """The number of prompts factor · s²/(m² − s²/n), with the error of m and of s².

    Intervals are made for κ = m/s, which is smooth where m passes zero: κ ± t SE by a jackknife
    that deletes one prompt, with the degrees of freedom of the tail of (x_p − m)², and then follow
    the rule of all noise (`tail.noise_interval`).

    Args:
        x: (n,) x_p of mean m and variance s², two or more, not all equal.
        factor: Of the ratio.
        confidence: Nominal coverage.
        positive: Whether m is of a quantity that cannot be negative.

    Returns:
        The ratio, in prompts, with one end where m may be zero.
    """
    n, kappa = len(x), float(x.mean() / x.std())
    centred = x - x.mean()
    shift = -centred / (n - 1)  # (n,) of the mean, without each
    variances = (centred.square().sum() - centred.square()) - (n - 1) * shift.square()
    deleted = (x.mean() + shift) / (variances.clamp_min(0) / (n - 2)).sqrt()
    se = float(((1 - 1 / n) * (deleted - deleted.mean()).square().sum()).sqrt())
    half = t_quantile(tail_degrees_of_freedom(x), confidence) * se
    square = kappa**2 - 1 / n
    value = factor / square if square > 0 else math.inf
    error = factor * 2 * se / abs(kappa) ** 3 if square > 0 else math.inf
    certain = not abs(kappa) <= half
    low = factor / (abs(kappa) + half) ** 2
    high = factor / (abs(kappa) - half) ** 2 if certain else math.inf
    unknown = _NO_SPREAD if positive else _NO_SIGN
    warnings = () if square > 0 else (_NO_RATIO.format(n=n),)
    found = Estimate(
        value, error, low, high, n, "prompts", "delete-one jackknife", warnings=warnings
    )
    rule = centred.square(), "prompts", confidence
    return noise_interval(found, *rule, () if certain else (unknown,))


_NO_SIGN = (
    "The sign of the mean is not certain on these {n} prompts, so their number is bounded from "
    "below only."
)
_NO_SPREAD = (
    "The spread over these {n} prompts is not known well enough for an upper end: their number is "
    "bounded from below only."
)
_NO_RATIO = (
    "The square of the mean came out below zero on these {n} prompts, less its own noise, which "
    "chance does: there is no noise scale. More of them give one."
)
