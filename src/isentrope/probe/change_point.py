"""Detection of a change in the mean of sequential readings, each with a standard error.

    x_j = μ + √φ σ_j ε_j,     w_j = 1/σ_j²,     m(a, b) = Σ_{a ≤ j < b} w_j x_j / W(a, b)

The change-point model with unknown mean and unknown scale φ (Hawkins, Qiu and Kang, 2003): after n
readings every split k in turn is tested by the t statistic of the two weighted means,

    t_k² = (m(k, n) − m(0, k))² / ( s_k² (1/W(0, k) + 1/W(k, n)) ),     s_k² = RSS_k/(n − 2)

with n − 2 degrees of freedom. The errors give the weights and the spread of the readings gives the
scale, so batch-to-batch variance beyond the errors widens the test too. The p-value of
max_k t_k² is found by simulation of ε, the weights held fixed: it depends on neither μ nor φ. So
for normal readings of constant mean the test at level α raises a false alarm at any one reading
with probability α, and at one in 1/α readings on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from isentrope.nouns.estimate import t_quantile

MIN_SIDE = 2
"""Readings on either side of a split."""
WINDOW = 32
"""Splits are looked for among this many of the newest readings."""
DRAWS = 3_999
"""Simulated runs behind a p-value."""
_SMALLEST_SCALE = 1e-6
"""Of s²: readings that agree to a thousandth of their errors are equal to rounding."""


@dataclass(frozen=True)
class Split:
    """The most likely place of a change.

    Attributes:
        place: Readings before it.
        before: Mean of the readings before it.
        after: Mean of the readings from it on.
        p_value: Of the hypothesis of no change; an upper bound where that is enough.
    """

    place: int
    before: SegmentMean
    after: SegmentMean
    p_value: float


@dataclass(frozen=True)
class SegmentMean:
    """The mean of readings without a change.

    Attributes:
        value: The weighted mean.
        se: Its standard error; NaN of one reading.
        degrees_of_freedom: Of its t-interval.
    """

    value: float
    se: float
    degrees_of_freedom: int

    def interval(self, confidence: float) -> tuple[float, float]:
        """The two-sided t-interval.

        Args:
            confidence: Nominal coverage.

        Returns:
            Its ends; both infinite with one reading.
        """
        if self.degrees_of_freedom < 1:
            return -math.inf, math.inf
        half = t_quantile(self.degrees_of_freedom, confidence) * self.se
        return self.value - half, self.value + half


def mean_of(values: Sequence[float], errors: Sequence[float]) -> SegmentMean:
    """The weighted mean of readings.

    Args:
        values: At least one reading.
        errors: Their standard errors, positive.

    Returns:
        The mean, its error scaled by the spread of the readings where that is larger.
    """
    x, w = _checked(values, errors)
    n, total = len(x), float(w.sum())
    mean = float(w @ x) / total
    if n == 1:
        return SegmentMean(mean, math.nan, 0)
    scale = max(1.0, float(w @ (x - mean) ** 2) / (n - 1))
    return SegmentMean(mean, math.sqrt(scale / total), n - 1)


def find_change_point(
    values: Sequence[float], errors: Sequence[float], level: float
) -> Split | None:
    """The most likely change in the mean of readings.

    Args:
        values: Readings in the order they came.
        errors: Their standard errors, positive.
        level: The level of the test.

    Returns:
        The split, its means with the common scale of both sides; None with fewer than five
        readings.
    """
    x, w = _checked(values, errors)
    n = len(x)
    if n <= 2 * MIN_SIDE:
        return None
    places = np.arange(max(MIN_SIDE, n - WINDOW), n - MIN_SIDE + 1)
    squares, means, scales = _statistics(x[None], w, places)
    k = int(np.argmax(squares[0]))
    sums = np.cumsum(w)
    weights = sums[places[k] - 1], sums[-1] - sums[places[k] - 1]
    before, after = (
        SegmentMean(float(m[0, k]), math.sqrt(max(1.0, scales[0, k]) / float(total)), n - 2)
        for m, total in zip(means, weights, strict=True)
    )
    p = _p_value(float(squares[0, k]), w, places, level)
    return Split(int(places[k]), before, after, p)


def _p_value(largest: float, w: np.ndarray, places: np.ndarray, level: float) -> float:
    """P-value of max_k t_k², by simulation where a bound is not enough."""
    n = len(w)
    single = 2 * float(student_t.sf(math.sqrt(largest), n - 2))
    bound = min(1.0, len(places) * single)  # Bonferroni's
    if single > level or bound <= min(level, 1 / (1 + DRAWS)):
        return bound
    noise = np.random.default_rng(n).normal(size=(DRAWS, n)) / np.sqrt(w)
    above = int((_statistics(noise, w, places)[0].max(1) >= largest).sum())
    return min(bound, (1 + above) / (1 + DRAWS))


def _statistics(
    x: np.ndarray, w: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """t_k² of every run and split, the means before and after, and s_k²; (runs, splits) each."""
    sums, moments = np.cumsum(w), np.cumsum(w * x, axis=1)
    before, after = sums[places - 1], sums[-1] - sums[places - 1]
    means = moments[:, places - 1] / before, (moments[:, -1:] - moments[:, places - 1]) / after
    centred = x - moments[:, -1:] / sums[-1]
    between = (means[1] - means[0]) ** 2 / (1 / before + 1 / after)
    within = (w * centred**2).sum(1, keepdims=True) - between
    scales = np.maximum(_SMALLEST_SCALE, within / (x.shape[1] - 2))
    return between / scales, means, scales


def _checked(values: Sequence[float], errors: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    x, se = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    fine = x.ndim == 1 and len(x) > 0 and x.shape == se.shape
    if not (fine and np.isfinite(x).all() and np.isfinite(se).all() and (se > 0).all()):
        raise ValueError("Readings need finite values, each with a positive standard error.")
    return x, 1 / se**2
