"""Estimates in words, short and with their errors, and in rows of tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd

from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate
from isentrope.system.formatting import MISSING, PAGE, known

number = PAGE.number

TableRow = Mapping[str, Any]
"""A row of a table, by column; each column has a type of its own."""


def has_interval(estimate: Estimate) -> bool:
    """Whether an estimate has both ends of its interval, so that its error bar can be trusted."""
    return math.isfinite(estimate.ci_low) and math.isfinite(estimate.ci_high)


def with_interval(estimate: Estimate | None) -> str:
    """Value and interval, "−0.0018 [−0.0024, −0.0011]"; an error without one is not shown."""
    if estimate is None or known(estimate.value) is None:
        return MISSING
    interval = PAGE.interval(estimate.ci_low, estimate.ci_high)
    return f"{number(estimate.value)} {interval.replace(MISSING, '(no interval)')}"


def with_error(estimate: Estimate) -> str:
    """Value and standard error, such as "−1.78 ± 0.34"."""
    return PAGE.with_error(estimate.value, known(estimate.se))


def from_to(estimates: Sequence[Estimate]) -> str:
    """From the first to the last, "from 0.5 [0.4, 0.6] to 0.7 [0.6, 0.8]"."""
    return f"from {with_interval(estimates[0])} to {with_interval(estimates[-1])}"


def within_one_se(value: float, se: float) -> Estimate:
    """A number of which only the standard error is known, in place of an interval; n is 0."""
    return Estimate(value, se, value - se, value + se, 0, "", "")


def estimates_in(rows: pd.DataFrame, metric: str) -> list[Estimate]:
    """The estimates in rows of a log.

    Args:
        rows: Its columns are METRIC, METRIC_se, METRIC_ci_low and METRIC_ci_high, as far as they
            are known.
        metric: Its name.

    Returns:
        One per row, with NaN in place of what is not there; within one standard error where the
        rows have no intervals.
    """
    names = [metric + end for end in ESTIMATE_COLUMNS.values()]
    numbers = rows.reindex(columns=names).apply(pd.to_numeric, errors="coerce").astype(float)
    if f"{metric}_ci_low" not in rows:
        return list(map(within_one_se, numbers[metric], numbers[f"{metric}_se"]))
    return [
        Estimate(*(row[name] for name in names), n=0, unit="", method="")
        for row in records(numbers)
    ]


def records(table: pd.DataFrame) -> list[TableRow]:
    """The rows of a table whose columns have names."""
    return cast("list[TableRow]", table.to_dict("records"))


def rows_of(estimates: Mapping[str, Estimate]) -> pd.DataFrame:
    """A row per estimate."""
    return pd.DataFrame([{"of": name, **e.columns()} for name, e in estimates.items()])
