"""Estimates in words, short and with their errors, and as they stand in rows of tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.system.formatting import MISSING, PAGE, known

number = PAGE.number

Row = Mapping[str, Any]
"""A row of a table, by column; each column has a type of its own."""


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
    return MISSING if estimate is None else PAGE.with_error(estimate.value, known(estimate.se))


def bare(value: float, se: float = math.nan) -> Estimate:
    """A number of which only the error is known, or not even that: without an interval."""
    return Estimate(value, se, math.nan, math.nan, 0, "", "")


def estimate_in(row: pd.Series, metric: str = "", *, n: int = 0) -> Estimate:
    """The estimate in a row of a table.

    Args:
        row: Its columns are METRIC, METRIC_se, METRIC_ci_low and METRIC_ci_high; or value, se,
            ci_low and ci_high.
        metric: Its name; "" for the second kind.
        n: Number of independent units; 0 if it is not known.

    Returns:
        With NaN in place of what is not there.
    """
    numbers = pd.to_numeric(row, errors="coerce").astype(float)
    columns = defaultdict(lambda: math.nan, {str(name): x for name, x in numbers.items()})
    return Estimate.of_columns(metric, columns, n, "", "")


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table whose columns have names."""
    return cast("list[Row]", table.to_dict("records"))


def from_to(estimates: Sequence[Estimate]) -> str:
    """From the first to the last, "from 0.5 [0.4, 0.6] to 0.7 [0.6, 0.8]"."""
    return f"from {with_interval(estimates[0])} to {with_interval(estimates[-1])}"
