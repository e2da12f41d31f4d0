"""Two runs side by side: the difference of every number that both have.

    d = b − a,     d_low = d − √((b − b_low)² + (a_high − a)² − 2ρ (b − b_low)(a_high − a))

and d_high likewise (MOVER; Zou & Donner 2008), from both intervals as they are, whether they are t,
Fieller's or on a logarithm. ρ is the correlation of the two numbers: that of the influences of the
prompts, where both runs were measured on the same prompts, else 0. Where either has no interval of
its own, its error is not to be trusted and no difference is given.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.reports.panel import Panel
from isentrope.reports.words import has_interval, with_interval

PAIRED = ", paired by prompt"
SAME_SEEDS = ", as if the runs were independent, although they share their seeds"


@dataclass(frozen=True)
class Difference:
    """What two runs say of one quantity.

    Attributes:
        difference: Second less first; None where an error is not known.
        sentence: In words, with what the interval counts of the draws that the runs share.
    """

    difference: Estimate | None
    sentence: str


def differences(first: Panel, second: Panel | None = None) -> Iterator[Difference]:
    """The differences of what two panels have in common; none where there is one panel."""
    for name, one in first.compared.items():
        two = None if second is None else second.compared.get(name)
        if second is None or two is None or not math.isfinite(one.value + two.value):
            continue
        seeds = first.source.made_with.seeds
        note = SAME_SEEDS if seeds and seeds == second.source.made_with.seeds else ""
        rho = _correlation(first.influences.get(name), second.influences.get(name))
        apart = difference(one, two, rho or 0.0)
        words = "an error is not known, so the difference has no interval"
        if apart is not None:
            verdict = f"{'higher' if apart.value > 0 else 'lower'} in B"
            if apart.covers(0.0):
                verdict = "which may be chance"
            note = note if rho is None else PAIRED
            words = f"difference {with_interval(apart)}{note}, {verdict}"
        yield Difference(apart, f"{name}: {with_interval(one)} and {with_interval(two)}; {words}.")


def _correlation(first: pd.Series | None, second: pd.Series | None) -> float | None:
    """Of two numbers, by influences of the same prompts; None where prompts are not the same."""
    if first is None or second is None or not first.index.equals(second.index):
        return None
    if not (len(first) > 1 and first.std() > 0 and second.std() > 0):
        return None
    return float(np.corrcoef(first, second)[0, 1])


def difference(first: Estimate, second: Estimate, correlation: float = 0.0) -> Estimate | None:
    """Second less first, with an interval; None where either has none.

    Args:
        first: a.
        second: b.
        correlation: ρ.

    Returns:
        d.
    """
    if not all(e.n and has_interval(e) for e in (first, second)):
        return None

    def reach(one: float, two: float) -> float:
        one, two = max(one, 0.0), max(two, 0.0)
        return math.sqrt(max(one**2 + two**2 - 2 * correlation * one * two, 0.0))

    value = second.value - first.value
    below = reach(second.value - second.ci_low, first.ci_high - first.value)
    above = reach(second.ci_high - second.value, first.value - first.ci_low)
    n, unit = min(first.n, second.n), f"difference of {first.unit}"
    return Estimate(value, math.nan, value - below, value + above, n, unit, "MOVER")
