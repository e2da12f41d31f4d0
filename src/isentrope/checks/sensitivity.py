"""The smallest faults that a batch without the sampler's log-probabilities can detect.

All are computed from the batch itself, on its prefixes:

    temperature  P(|z| > 4) of the martingale from E X, E X² and Var X at each temperature
    EOS          the same of its count, if EOS is drawn f times as often
    filters      the weakest setting within which a sound batch is unlikely to stay

validation/power.py simulates the same faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from isentrope.checks.draws import COOLER, HOTTER, Draws, Event, Shift
from isentrope.estimators.identities import P_LIMIT, Z_LIMIT
from isentrope.estimators.sample import ScoredBatch

POWER = 0.8
MARGIN = 0.8416
"""Standard deviations beyond the limit at which a test fails with a probability of POWER."""


def sensitivity(sample: ScoredBatch, draws: Draws) -> str:
    """The smallest faults that a batch of these prefixes finds, in words."""
    variances = sample.series[0].variances
    assert variances is not None
    parts = [
        temperature_found(draws.temperatures, float(variances.sum())),
        "" if draws.eos is None else eos_found(draws.eos),
    ]
    for filter_ in draws.filters:
        setting = filter_.weakest_detected(P_LIMIT)
        if setting is not None:
            relation = "or more" if filter_.name == "min_p" else "or less"
            parts.append(f"{filter_.name} {setting:.4g} {relation}")
    return (
        f"Without them, {len(sample.prompt_index)} sequences show in {POWER:.0%} of cases: "
        f"{'; '.join(x for x in parts if x)}. Smaller faults are not detected."
    )


def temperature_found(shifts: dict[float, Shift], variance: float) -> str:
    """The temperatures nearest to the scorer's that the martingale finds, in words."""

    def nearest(factors: Iterable[float]) -> float | None:
        return next((f for f in factors if is_found(shifts[f], variance)), None)

    below, above = nearest(COOLER), nearest(HOTTER)
    if below is None and above is None:
        return "no other temperature"
    sides = [f"{side} {f:g}" for side, f in (("below", below), ("above", above)) if f is not None]
    return f"a temperature {' or '.join(sides)} times the scorer's"


def is_found(shift: Shift, variance: float) -> bool:
    """Whether a test finds a fault in 80 % of cases, with Σ of its conditional variances."""
    limit = Z_LIMIT * math.sqrt(shift.squares / 3 + 2 * variance / 3)
    return abs(shift.mean) - limit >= MARGIN * math.sqrt(max(shift.variance, 0.0))


def eos_found(eos: Event) -> str:
    """The rate of EOS below which its count detects it; empty if it never does."""
    factor = eos_factor(eos.expected, eos.variance)
    return "" if factor is None else f"EOS drawn less than {factor:g} times as often"


def eos_factor(expected: float, variance: float) -> float | None:
    """The largest factor on π(EOS) that its count finds in 80 % of cases.

    Args:
        expected: Σ q, with q = π(EOS).
        variance: Σ q (1 − q).

    Returns:
        A number below 1 in steps of .01; None if not even a masked EOS is found.
    """
    squares = expected - variance  # Σ q²
    for factor in (k / 100 for k in range(99, -1, -1)):
        shift = Shift(
            mean=(factor - 1) * expected,
            squares=factor * expected + (1 - 2 * factor) * squares,
            variance=factor * expected - factor**2 * squares,
        )
        if is_found(shift, variance):
            return factor
    return None
