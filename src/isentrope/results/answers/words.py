"""Estimates in words, short and with their intervals."""

import math
from collections.abc import Sequence

from isentrope.nouns.estimate import Estimate
from isentrope.system.formatting import MISSING, PAGE, known

short = PAGE.number
"""A number in a sentence."""


def has_interval(estimate: Estimate) -> bool:
    """Whether an estimate has both ends of its interval, so that its error bar can be trusted."""
    return math.isfinite(estimate.ci_low) and math.isfinite(estimate.ci_high)


def with_interval(estimate: Estimate | None) -> str:
    """Value and interval, "−0.0018 [−0.0024, −0.0011]"; an error without one is not shown."""
    if estimate is None or known(estimate.value) is None:
        return MISSING
    interval = PAGE.interval(estimate.ci_low, estimate.ci_high)
    return f"{short(estimate.value)} {interval.replace(MISSING, '(no interval)')}"


def with_error(estimate: Estimate) -> str:
    """Value and standard error, such as "−1.78 ± 0.34"."""
    return PAGE.with_error(estimate.value, known(estimate.se))


def from_to(estimates: Sequence[Estimate]) -> str:
    """From the first to the last, "from 0.5 [0.4, 0.6] to 0.7 [0.6, 0.8]"."""
    return f"from {with_interval(estimates[0])} to {with_interval(estimates[-1])}"


def moved(change: Estimate, what: str, unit: str) -> str:
    """A change whose sign is certain: "lowers entropy by 0.0018 nats per token [0.0011, 0.0024]".

    Args:
        change: With both ends of its interval, which does not contain zero.
        what: The quantity that changes.
        unit: Its unit.

    Returns:
        The verb, the size and its interval.
    """
    verb = "lowers" if change.value < 0 else "raises"
    low, high = sorted((abs(change.ci_low), abs(change.ci_high)))
    interval = PAGE.interval(low, high)
    return f"{verb} {what} by {short(abs(change.value))} {unit} {interval}"
