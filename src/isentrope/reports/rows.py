"""Estimates out of rows: of a sweep over learning rates, and of an evaluation."""

from __future__ import annotations

from typing import Any, cast

import pandas as pd


def at_training_rate(results: dict[str, Any]) -> dict[str, Any] | None:
    """The row of the sweep at the rate of interest.

    Args:
        results: Of `measure`.

    Returns:
        The row; None if the sweep leaves that rate out.
    """
    rate = results["step"].get("rate_of_interest")
    return next((row for row in results["sweep"] if row["eta"] == rate), None)


def change_at(row: dict[str, Any], unit: str) -> dict[str, Any]:
    """The measured change of a row as an estimate.

    Args:
        row: Of the sweep.
        unit: Of entropy.

    Returns:
        From fresh responses where they were drawn, which need no weights.
    """
    if row.get("resampled"):
        return {**row["resampled"], "unit": unit}
    ends = {"value": "", "se": "_se", "ci_low": "_ci_low", "ci_high": "_ci_high"}
    return {key: row[f"deltaH_true{end}"] for key, end in ends.items()} | {"unit": unit}


def estimate_in(row: Any, metric: str) -> dict[str, float | None]:
    """One metric of a row of an evaluation.

    Args:
        row: Of its table.
        metric: Its name.

    Returns:
        value, se, ci_low, ci_high; None in place of what is not there.
    """
    ends = {"value": "", "se": "_se", "ci_low": "_ci_low", "ci_high": "_ci_high"}
    values = {key: row.get(f"{metric}{end}") for key, end in ends.items()}
    return {k: None if v is None or v != v else float(v) for k, v in values.items()}


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table.

    Args:
        table: Its columns have names.

    Returns:
        One dictionary a row.
    """
    return cast("list[dict[str, Any]]", table.to_dict("records"))
