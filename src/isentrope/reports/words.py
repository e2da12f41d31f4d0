"""Estimates in rows of tables."""

from collections.abc import Mapping
from typing import Any, cast

import pandas as pd

from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate

TableRow = Mapping[str, Any]
"""A row of a table, by column; each column has a type of its own."""


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
