"""Estimates in words, short and with their errors."""

from __future__ import annotations

import math
from dataclasses import replace

from isentrope.nouns.estimate import Estimate
from isentrope.system.formatting import MISSING, PAGE, known

number = PAGE.number


def has_interval(estimate: Estimate) -> bool:
    """Whether an estimate has both ends of its interval, so that its error bar can be trusted."""
    return math.isfinite(estimate.ci_low) and math.isfinite(estimate.ci_high)


def with_interval(estimate: Estimate | None) -> str:
    """Value and interval, "−0.0018 [−0.0024, −0.0011]"; its standard error without one."""
    if estimate is None or known(estimate.value) is None:
        return MISSING
    low, high = known(estimate.ci_low), known(estimate.ci_high)
    if low is not None or high is not None:
        return f"{number(estimate.value)} {PAGE.interval(low, high)}"
    if known(estimate.se) is not None:
        return f"{with_error(estimate)} (no interval)"
    return f"{number(estimate.value)} (no interval)"


def without_error(estimate: Estimate | None) -> str:
    """Value and interval, "0.013 [0.0083, ∞)", and no standard error: for a ratio."""
    return with_interval(None if estimate is None else replace(estimate, se=math.nan))


def with_error(estimate: Estimate | None) -> str:
    """Value and standard error, such as "−1.78 ± 0.34"."""
    if estimate is None or known(estimate.value) is None:
        return MISSING
    return PAGE.with_error(estimate.value, known(estimate.se))
