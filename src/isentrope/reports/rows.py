"""Rows of tables, and the estimates in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import pandas as pd

from isentrope.nouns.estimate import Estimate

Row = Mapping[str, Any]
"""A row of a table, by column; each column has a type of its own."""

NAMES = ("value", "se", "ci_low", "ci_high")
"""What a table says of an estimate."""


def bare(value: float, se: float = math.nan, *, unit: str = "") -> Estimate:
    """A number of which only the error is known, or not even that: without an interval."""
    return Estimate(value, se, math.nan, math.nan, 0, unit, "")


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
    columns = [metric or "value"]
    columns += [f"{metric}_{name}" if metric else name for name in NAMES[1:]]
    values = [row.get(column) for column in columns]
    value, se, low, high = (math.nan if x is None or pd.isna(x) else float(x) for x in values)
    return Estimate(value, se, low, high, n, "", "")


def columns_of(estimate: Estimate) -> dict[str, float]:
    """What a table says of an estimate."""
    return {name: getattr(estimate, name) for name in NAMES}


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table whose columns have names."""
    return cast("list[Row]", table.to_dict("records"))
