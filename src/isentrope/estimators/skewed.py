"""Intervals of positive means and ratios whose units are skewed to the right (T11).

Where few units hold much of a sum, a batch that has too few of them has a value and an error that
are both too small, so F ± t SE misses at the upper end. The interval is the hull of two, each of
which covers where the other does not:

    F exp(± t SE/F)                     which stays above zero, and holds for few units
    F − SE x(± t)                       Hall's transformation of the t statistic

x inverts T + γT²/3 + γ²T³/27 + γ/6, which has no skewness to first order (Hall 1992, "On the
removal of skewness by transformation", JRSS B 54), with γ = g/√n and g the skewness of the
influences. t has the degrees of freedom of the participation, and below `FEW_UNITS` units not more
than the tail of their squares allows (`tail`). Coverage and width: docs/results/intervals.md.
"""

import math
from dataclasses import replace
from typing import Any

from isentrope.estimators.jackknife import Jackknifed
from isentrope.estimators.tail import tail_degrees_of_freedom
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile

FEW_UNITS = 16
"""Units below which their participation alone says too little of a tail."""


def skewed_estimate(
    result: Jackknifed, row: int, *, confidence: float = 0.95, **options: Any
) -> Estimate:
    """One of the statistics of a jackknife, of a positive quantity, with the interval above.

    Args:
        result: The jackknifed statistics.
        row: Its row.
        confidence: Nominal coverage of the interval.
        **options: Of `Estimate.from_influences`.

    Returns:
        The estimate; with a symmetric interval where it is not positive.
    """
    estimate = result.estimate(row, confidence=confidence, **options)
    if estimate.degrees_of_freedom is None or not estimate.value > 0:
        return estimate
    influences = result.influences[row]
    freedom = estimate.degrees_of_freedom
    if result.n_units < FEW_UNITS:
        freedom = min(freedom, tail_degrees_of_freedom(influences))
    t = t_quantile(freedom, confidence)
    gamma = (
        float((influences**3).mean() / influences.square().mean() ** 1.5) / len(influences) ** 0.5
    )
    hull = replace(estimate, degrees_of_freedom=freedom).on_log_scale(confidence)
    return replace(
        hull,
        ci_low=min(hull.ci_low, max(estimate.value - estimate.se * _invert(t, gamma), 0.0)),
        ci_high=max(hull.ci_high, estimate.value - estimate.se * _invert(-t, gamma)),
    )


def _invert(x: float, gamma: float) -> float:
    """The t statistic whose transformed value is x."""
    if abs(gamma) < 1e-9:
        return x
    root = math.cbrt(1 + gamma * (x - gamma / 6))
    return 3 / gamma * (root - 1)
