"""Estimates of results.json in words, short and with their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isentrope.formatting import MISSING, PAGE

Number = Mapping[str, Any]
"""An Estimate as results.json has it: value, se, ci_low, ci_high, n, unit, ..."""

number = PAGE.number


def has_interval(estimate: Number) -> bool:
    """Whether an estimate has both ends of its interval.

    Args:
        estimate: The estimate.

    Returns:
        False where its error bar is not to be trusted.
    """
    return estimate.get("ci_low") is not None and estimate.get("ci_high") is not None


def with_interval(estimate: Number | None) -> str:
    """Value and interval, or value and standard error where there is no interval.

    Args:
        estimate: The estimate, or None.

    Returns:
        For example "−0.0018 [−0.0024, −0.0011]".
    """
    if estimate is None or estimate.get("value") is None:
        return MISSING
    value, low, high = (estimate.get(key) for key in ("value", "ci_low", "ci_high"))
    if low is not None or high is not None:
        return f"{number(value)} {PAGE.interval(low, high)}"
    if estimate.get("se") is not None:
        return f"{with_error(estimate)} (no interval)"
    return f"{number(value)} (no interval)"


def without_error(estimate: Number | None) -> str:
    """Value and interval, and never a standard error: for a ratio, whose spread is not even.

    Args:
        estimate: The estimate, or None.

    Returns:
        For example "0.013 [0.0083, ∞)" or "0.013 (no interval)".
    """
    return with_interval(None if estimate is None else {**estimate, "se": None})


def with_error(estimate: Number | None) -> str:
    """Value and standard error.

    Args:
        estimate: The estimate, or None.

    Returns:
        For example "−1.78 ± 0.34".
    """
    return (
        MISSING if estimate is None else PAGE.with_error(estimate.get("value"), estimate.get("se"))
    )


def scaled(estimate: Number, factor: float, unit: str) -> dict[str, Any]:
    """The same estimate in another unit.

    Args:
        estimate: The estimate.
        factor: Positive.
        unit: What it is in then.

    Returns:
        A copy.
    """
    ends = ("value", "se", "ci_low", "ci_high")
    said = {key: None if estimate.get(key) is None else estimate[key] * factor for key in ends}
    return {**estimate, **said, "unit": unit}
