"""How far the spread of a batch can be trusted: degrees of freedom from the tail (T8).

The error of a mean is computed from how the units differ. Where their tail is heavy most batches
hold none of its rare large values: the spread is too small in most of them, most of all in those
that look even, so no warning or threshold can identify them. Instead the interval is lengthened in
every batch. With z_p = (c_p − c̄)² and ξ Hill's estimate of its tail index,

    ξ = 1/k Σ_{j≤k} log(z_(j)/z_(k+1)),   k = min(n/5, 3√n),     degrees of freedom = 2/ξ

between 1 and n − 1: 1/ξ is the tail index of z. Normal c have about 4 (quantile 2.8 in place of
2.0), c without a variance fewer than 2. Where the c are positive sums, such as squared norms,
Hill's estimate of their own index 1/ξ_c identifies a light tail better, and the larger of 2/ξ and
1/ξ_c is used. No interval accounts for large values so rare that a batch holds none of them.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import held_by_few, participation

MIN_UNITS_FOR_INTERVAL = 32
"""Units from which on noise has an interval: below, ξ is not known well enough."""

MIN_UNITS_FOR_UPPER_END = 128
"""Units from which on a noise has an upper end: one gradient in thirty that is six times as long
doubles the trace, and fewer units hold none of it in 2–38 % of the batches."""

RARE_SIZE = 10.0
"""How many times as large as usual the units are that an upper end allows for."""

USUAL = 9.0
"""Medians of c_p, at most, for which a unit counts in the usual noise."""

LIGHT_TAILS = (
    "An interval of noise allows for the tail that the batch shows, and its upper end for units "
    f"{RARE_SIZE:g} times as large as usual of which the batch holds none by chance. Rarer and "
    "larger ones are in no interval."
)
"""The warning of every interval of noise."""


def tail_degrees_of_freedom(values: Tensor) -> float:
    """Degrees of freedom of the error of a mean, fewer where the values have a tail.

    Args:
        values: (n,) c_p, two or more.

    Returns:
        2/ξ, between 1 and n − 1.
    """
    highest = len(values) - 1.0
    squares = (values.double() - values.double().mean()).square()
    if not float(squares.max()) > 0:
        return highest  # all equal
    return min(max(2 * _estimate_tail_index(squares), 1.0), highest)


def degrees_of_freedom_of_sums(values: Tensor) -> float:
    """The same where the values are positive sums, or nearly so: squared norms, traces.

    Args:
        values: (n,) c_p, two or more.

    Returns:
        The larger of 2/ξ and 1/ξ_c, between 1 and n − 1.
    """
    of_values = min(_estimate_tail_index(values.double()), len(values) - 1.0)
    return max(tail_degrees_of_freedom(values), of_values)


def _estimate_tail_index(values: Tensor) -> float:
    """1/ξ by Hill's estimate from the largest fifth; 0 where they are not positive."""
    n = len(values)
    k = min(max(3, math.ceil(min(0.2 * n, 3 * n**0.5))), n - 1)
    largest = values.sort(descending=True).values[: k + 1]
    if not float(largest[-1]) > 0:
        return 0.0
    xi = float((largest[:-1] / largest[-1]).log().mean())
    return 1 / xi if xi > 0 else math.inf


def noise_interval(
    estimate: Estimate,
    noises: Tensor,
    unit: str,
    confidence: float,
    caveats: tuple[str, ...] = (),
) -> Estimate:
    """The interval of a noise, as far as its units show one: the rule for every noise and scale.

    Args:
        estimate: The noise, or a number in proportion to it, with the interval that the degrees of
            freedom of its tail give.
        noises: (n,) c_p, not negative, whose mean is the noise.
        unit: Name of the units, in the plural.
        confidence: Nominal coverage.
        caveats: Sentences on the interval, for where there is one.

    Returns:
        The estimate without an interval below 32 units, without an upper end below 128, and from
        there on with one that `rare_units` lengthens; and a warning.
    """
    n = len(noises)
    low = estimate.ci_low
    high = estimate.ci_high
    if n < MIN_UNITS_FOR_INTERVAL:
        low = high = math.nan
        caveats = (_TOO_FEW,)
    elif math.isnan(low):
        pass
    elif n < MIN_UNITS_FOR_UPPER_END:
        high = math.inf
        caveats = (*caveats, _NO_UPPER_END)
    else:
        high *= rare_units(noises, confidence)
        caveats = (*caveats, LIGHT_TAILS)
    sentences = (sentence.format(n=n, unit=unit) for sentence in caveats)
    return replace(estimate, ci_low=low, ci_high=high, warnings=(*estimate.warnings, *sentences))


def noise_over_repeats(
    value: float, half: float, units: int, confidence: float
) -> tuple[float, float]:
    """The interval of the mean of a noise over repeats, each with an interval of its own.

    Args:
        value: The mean, above 0.
        half: Half of its interval by the degrees of freedom of the tail.
        units: Units of all repeats together.
        confidence: Nominal coverage.

    Returns:
        The ends value · exp(± half/value), the upper one as long as `rare_units` of as many even
        units makes it.
    """
    factor = math.exp(min(half / value, 700.0))
    return value / factor, value * factor * rare_units(torch.ones(units), confidence)


def rare_units(noises: Tensor, confidence: float) -> float:
    """By how much units that the batch may have missed can raise a noise.

    A kind of unit whose share is at most p₀ = 1 − (α/2)^(1/n) is absent from n units with a
    probability of α/2 or more (Clopper and Pearson). With R times the usual size it adds p₀R² times
    the usual noise, the mean of c_p where none counts for more than nine medians.

    Args:
        noises: (n,) c_p, not negative.
        confidence: 1 − α.

    Returns:
        The factor 1 + p₀R² · usual/mean.
    """
    mean = float(noises.mean())
    if not mean > 0:
        return 1.0
    usual = float(noises.clamp(max=USUAL * float(noises.median())).mean())
    return 1 + missed(len(noises), (1 - confidence) / 2) * RARE_SIZE**2 * usual / mean


def missed(n: int, probability: float) -> float:
    """The largest share of a kind of unit that n units hold none of with this probability.

    Args:
        n: Units.
        probability: That none of them is of the kind.

    Returns:
        1 − probability^(1/n).
    """
    return 1 - probability ** (1 / n)


_TOO_FEW = (
    "{n} {unit} are too few for an interval of their noise: below "
    f"{MIN_UNITS_FOR_INTERVAL} a heavy tail cannot be distinguished from a light one. "
    f"{MIN_UNITS_FOR_INTERVAL} give a lower end, and {MIN_UNITS_FOR_UPPER_END} an upper end too."
)
_NO_UPPER_END = (
    "{n} {unit} bound the noise from below only: a few {unit} in a hundred may hold half of it, "
    f"and so small a batch may have none of them. {MIN_UNITS_FOR_UPPER_END} give an upper end."
)


def uneven(values: Tensor, unit: str) -> tuple[str, ...]:
    """Whether few units hold most of the noise.

    Args:
        values: (n,) c_p, not negative.
        unit: Their name, in the plural.

    Returns:
        One sentence where the effective number of units is less than half of n.
    """
    n = len(values)
    effective = participation(values)
    if effective >= n / 2:
        return ()
    sentence = held_by_few("the noise", effective, unit, n)
    return (
        f"{sentence}: the value is likely too small, and the interval is long for that reason.",
    )
