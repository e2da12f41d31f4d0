"""The number of prompts at which the noise of a mean is a share of the mean itself (T8), (T11).

    factor · s²/(m² − s²/n)

with m and s² the mean and the variance of x over n prompts. Less s²/n, because the square of a
mean is larger by its own noise.
"""

import math

from torch import Tensor

from isentrope.estimators.tail import noise_interval, tail_degrees_of_freedom
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile


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
    n = len(x)
    kappa = float(x.mean() / x.std())
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
    ratio = Estimate(
        value, error, low, high, n, "prompts", "delete-one jackknife", warnings=warnings
    )
    caveats = () if certain else (unknown,)
    return noise_interval(ratio, centred.square(), "prompts", confidence, caveats)


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
