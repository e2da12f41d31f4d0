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

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

MIN_SIDE = 2
"""Readings on either side of a split."""
WINDOW = 32
"""Splits are looked for among this many of the newest readings."""
DRAWS = 3_999
"""Simulated runs behind a p-value."""
_SMALLEST_SCALE = 1e-6
"""Of s²: readings that agree to a thousandth of their errors are equal to rounding."""


def find_change_point(
    values: Sequence[float], errors: Sequence[float], level: float
) -> tuple[int, float] | None:
    """The most likely change in the mean of readings.

    Args:
        values: Readings in the order they came.
        errors: Their standard errors, positive.
        level: The level of the test.

    Returns:
        Number of readings before it, and the p-value of no change, an upper bound where that is
        enough; None with fewer than five readings.
    """
    x = np.asarray(values, dtype=float)
    w = np.asarray(errors, dtype=float) ** -2.0
    n = len(x)
    if n <= 2 * MIN_SIDE:
        return None
    places = np.arange(max(MIN_SIDE, n - WINDOW), n - MIN_SIDE + 1)
    (squares,) = _compute_statistics(x[None], w, places)
    k = int(np.argmax(squares))
    largest = float(squares[k])
    single = 2 * float(stdtr(n - 2, -math.sqrt(largest)))
    p = min(1.0, len(places) * single)  # Bonferroni's bound
    if single <= level and p > min(level, 1 / (1 + DRAWS)):
        noise = np.random.default_rng(n).normal(size=(DRAWS, n)) / np.sqrt(w)
        above = int((_compute_statistics(noise, w, places).max(1) >= largest).sum())
        p = min(p, (1 + above) / (1 + DRAWS))
    return int(places[k]), p


def _compute_statistics(x: np.ndarray, w: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(runs, splits) t_k²."""
    weights = np.cumsum(w)
    sums = np.cumsum(w * x, axis=1)
    before = weights[places - 1]
    after = weights[-1] - before
    partial = sums[:, places - 1]
    between = ((sums[:, -1:] - partial) / after - partial / before) ** 2 / (1 / before + 1 / after)
    centred = x - sums[:, -1:] / weights[-1]
    within = (w * centred**2).sum(1, keepdims=True) - between
    return between / np.maximum(_SMALLEST_SCALE, within / (x.shape[1] - 2))
