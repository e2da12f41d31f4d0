"""Two runs side by side: the difference of every number that both have.

    d = b − a,    SE² = SE_a² + SE_b²,    t-interval, Satterthwaite's degrees of freedom

The runs are taken to be independent. Where either has no error, no difference is given; where
either has no interval of its own, its error is not to be trusted and none is given either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isentrope.estimate import Estimate
from isentrope.reports.panel import Panel
from isentrope.reports.sentences import has_interval, number, with_interval

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """What two runs say of one quantity.

    Attributes:
        name: The quantity.
        first: As the first run has it.
        second: As the second has it.
        difference: Second less first; None where an error is not known.
    """

    name: str
    first: Estimate
    second: Estimate
    difference: Estimate | None

    @property
    def sentence(self) -> str:
        """The difference in words."""
        start = f"{self.name}: {with_interval(self.first)} and {with_interval(self.second)}"
        if self.difference is None:
            return f"{start}; an error is not known, so the difference has no interval."
        difference = self.difference
        interval = f"[{number(difference.ci_low)}, {number(difference.ci_high)}]"
        verdict = (
            "which may be chance"
            if difference.ci_low <= 0 <= difference.ci_high
            else f"{'higher' if difference.value > 0 else 'lower'} in B"
        )
        return f"{start}; difference {number(difference.value)} {interval}, {verdict}."


def differences(first: Panel, second: Panel) -> list[Difference]:
    """The differences of what two panels have in common."""
    return [
        Difference(name, one, second.numbers[name], difference(one, second.numbers[name]))
        for name, one in first.numbers.items()
        if name in second.numbers and _known(one) and _known(second.numbers[name])
    ]


def _known(estimate: Estimate) -> bool:
    return math.isfinite(estimate.value)


def difference(first: Estimate, second: Estimate) -> Estimate | None:
    """Second less first, of independent estimates, with a 95 % interval; None without errors."""
    both = (first, second)
    if any(not math.isfinite(e.se) or not e.n or not has_interval(e) for e in both):
        return None
    squares = [e.se**2 for e in both]
    freedoms = [degrees_of_freedom(e) for e in both]
    if min(freedoms) <= 0:
        return None
    se = math.sqrt(sum(squares))
    spread = sum(s**2 / f for s, f in zip(squares, freedoms, strict=True))
    return Estimate.from_standard_error(
        second.value - first.value,
        se,
        min(e.n for e in both),
        unit=first.unit,
        method="difference of independent runs",
        confidence=CONFIDENCE,
        degrees_of_freedom=se**4 / spread if spread else min(freedoms),
    )


def degrees_of_freedom(estimate: Estimate) -> float:
    """Of an estimate's error: its own, or the number of units less one where it does not say."""
    known = estimate.degrees_of_freedom
    return estimate.n - 1.0 if known is None else known
